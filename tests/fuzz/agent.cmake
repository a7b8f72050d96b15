# SPDX-License-Identifier: Apache-2.0
# ncclscope_fuzzer(name SOURCES ... LINK ...): a libFuzzer program in build/fuzz/fuzz.
function(ncclscope_fuzzer name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LINK} ncclscope_options Threads::Threads)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fuzz)
  add_dependencies(ncclscope_fuzzers ${name})
endfunction()

ncclscope_fuzzer(ncclscope_frame_fuzzer SOURCES fuzz/frame_fuzzer.cc LINK ncclscope_proto)
ncclscope_fuzzer(ncclscope_session_fuzzer SOURCES fuzz/session_fuzzer.cc LINK ncclscope_agent_aggregate)
ncclscope_fuzzer(ncclscope_http_fuzzer SOURCES fuzz/http_fuzzer.cc LINK ncclscope_agent_export)
ncclscope_fuzzer(ncclscope_config_fuzzer SOURCES fuzz/config_fuzzer.cc
  LINK ncclscope_agent_config ncclscope_agent_api_base ncclscope_agent_access)
ncclscope_fuzzer(ncclscope_identity_fuzzer SOURCES fuzz/identity_fuzzer.cc LINK ncclscope_agent_identity)
ncclscope_fuzzer(ncclscope_archive_fuzzer SOURCES fuzz/archive_fuzzer.cc LINK ncclscope_archive)
