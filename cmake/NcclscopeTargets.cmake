# SPDX-License-Identifier: Apache-2.0
# Compiler settings shared by all targets of the project.

add_library(ncclscope_options INTERFACE)
target_include_directories(ncclscope_options INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_features(ncclscope_options INTERFACE cxx_std_20)
target_compile_options(ncclscope_options INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wnon-virtual-dtor
  -Woverloaded-virtual -Wdouble-promotion -Wformat=2 -Werror
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wold-style-cast -Wduplicated-cond -Wlogical-op -Wsuggest-override>
  # g++ 12 sees an overlap in `"text" + std::string` that is not there (GCC bug 105651).
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>
  -fstack-protector-strong -fno-omit-frame-pointer)
if(CMAKE_BUILD_TYPE MATCHES "Rel" AND NOT NCCLSCOPE_SANITIZE)
  target_compile_definitions(ncclscope_options INTERFACE _FORTIFY_SOURCE=2)
endif()
if(NCCLSCOPE_SANITIZE)
  target_compile_options(ncclscope_options INTERFACE -fsanitize=${NCCLSCOPE_SANITIZE} -fno-sanitize-recover=all
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)  # seen in <regex>, wrongly, when sanitizers are on
  target_link_options(ncclscope_options INTERFACE -fsanitize=${NCCLSCOPE_SANITIZE})
endif()

if(NCCLSCOPE_BUILD_FUZZERS)
  target_compile_options(ncclscope_options INTERFACE -fsanitize=fuzzer-no-link)  # coverage in libraries too
endif()

# ncclscope_library(name [SOURCES ...] [LINK ...]): a static library with the project's settings.
function(ncclscope_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_link_libraries(${name} PUBLIC ${ARG_LINK} PRIVATE ncclscope_options)
  target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR})
endfunction()

# ncclscope_executable(name SOURCES ... LINK ...)
function(ncclscope_executable name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LINK} ncclscope_options Threads::Threads)
endfunction()

# ncclscope_test(name SOURCES ... LINK ... [LABELS ...] [TIMEOUT seconds]): a GoogleTest executable, one ctest entry.
# Labels: unit, integration, e2e, sanitize (also run in the ASan and TSan builds).
function(ncclscope_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;LINK;LABELS" ${ARGN})
  if(NOT NCCLSCOPE_BUILD_TESTS)
    return()
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LINK} GTest::gmock GTest::gtest_main ncclscope_options Threads::Threads)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
  if("sanitize" IN_LIST ARG_LABELS)
    if(NOT TARGET ncclscope_sanitize_tests)
      add_custom_target(ncclscope_sanitize_tests)
    endif()
    add_dependencies(ncclscope_sanitize_tests ${name})
  endif()
endfunction()

# ncclscope_benchmark(name SOURCES ... LINK ...): a Google Benchmark executable, run by scripts/bench.sh.
# It is placed in <build>/bench, so that the script need not know the names.
function(ncclscope_benchmark name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  if(NOT NCCLSCOPE_BUILD_BENCHMARKS)
    return()
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LINK} benchmark::benchmark ncclscope_options Threads::Threads)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
endfunction()

# ncclscope_fuzzer(name SOURCES ... LINK ... [CORPUS folder]): a libFuzzer executable. ctest runs its corpus once;
# scripts/soak.sh runs it for long. Only in builds with NCCLSCOPE_BUILD_FUZZERS.
function(ncclscope_fuzzer name)
  cmake_parse_arguments(ARG "" "CORPUS" "SOURCES;LINK" ${ARGN})
  if(NOT NCCLSCOPE_BUILD_FUZZERS)
    return()
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  target_link_libraries(${name} PRIVATE ${ARG_LINK} ncclscope_options Threads::Threads)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fuzz)
  add_dependencies(ncclscope_fuzzers ${name})
  if(ARG_CORPUS)
    add_test(NAME ${name} COMMAND ${name} -runs=0 ${ARG_CORPUS})
    set_tests_properties(${name} PROPERTIES LABELS fuzz TIMEOUT 300)
  endif()
endfunction()
