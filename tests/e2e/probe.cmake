# SPDX-License-Identifier: Apache-2.0
# `ncclscope probe` as users run it: its worker linked with the real NCCL and CUDA runtime on a machine without a driver,
# and with stand-ins for both, which measure nothing but move real bytes between real processes.
if(NCCLSCOPE_SANITIZE OR NOT TARGET ncclscope)
  return()
endif()

if(TARGET ncclscope-probe-worker)
  set(NCCLSCOPE_STAND_INS ${CMAKE_BINARY_DIR}/tests/stand-ins)
  get_filename_component(cudart ${NCCLSCOPE_CUDART_LIBRARY} REALPATH)
  string(REGEX MATCH "so\\.[0-9]+" cudart ${cudart})
  foreach(library nccl cudart)
    add_library(ncclscope_fake_${library} SHARED ${CMAKE_SOURCE_DIR}/tests/support/fake_${library}.cc)
    target_include_directories(ncclscope_fake_${library} SYSTEM PRIVATE
      $<TARGET_PROPERTY:ncclscope::nccl,INTERFACE_INCLUDE_DIRECTORIES>)
    target_link_libraries(ncclscope_fake_${library} PRIVATE ncclscope_options)
    set_target_properties(ncclscope_fake_${library} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${NCCLSCOPE_STAND_INS} PREFIX "")
  endforeach()
  set_target_properties(ncclscope_fake_nccl PROPERTIES OUTPUT_NAME libnccl SUFFIX .so.2)
  set_target_properties(ncclscope_fake_cudart PROPERTIES OUTPUT_NAME libcudart SUFFIX .${cudart})
  # NVIDIA's library has versions of its symbols.
  file(WRITE ${NCCLSCOPE_STAND_INS}/cudart.map "libcudart.${cudart} { *; };\n")
  target_link_options(ncclscope_fake_cudart PRIVATE -Wl,--version-script=${NCCLSCOPE_STAND_INS}/cudart.map)
  # NVLink of the machine "rail8".
  add_custom_command(OUTPUT ${NCCLSCOPE_STAND_INS}/libnvidia-ml.so.1
    COMMAND ${CMAKE_COMMAND} -E create_symlink $<TARGET_FILE:ncclscope_fake_nvml> ${NCCLSCOPE_STAND_INS}/libnvidia-ml.so.1
    DEPENDS ncclscope_fake_nvml VERBATIM)
  add_custom_target(ncclscope_fake_nvml_link ALL DEPENDS ${NCCLSCOPE_STAND_INS}/libnvidia-ml.so.1)
endif()

foreach(scenario no_driver not_built one_node one_gpu faults several_processes baseline document slurm)
  add_test(NAME probe_${scenario}
    COMMAND /usr/bin/python3 ${CMAKE_SOURCE_DIR}/tests/e2e/probe/probe.py --build ${CMAKE_BINARY_DIR} ${scenario})
  set_tests_properties(probe_${scenario} PROPERTIES LABELS e2e TIMEOUT 120 PROCESSORS 2 SKIP_RETURN_CODE 77)
endforeach()
set_tests_properties(probe_slurm PROPERTIES RUN_SERIAL TRUE)
