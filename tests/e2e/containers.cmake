# SPDX-License-Identifier: Apache-2.0
# What goes to a node, and the images that bring it.
if(NCCLSCOPE_SANITIZE OR NOT TARGET ncclscope_plugin)
  return()
endif()

add_test(NAME containers_installer
  COMMAND /usr/bin/python3 ${CMAKE_SOURCE_DIR}/tests/e2e/containers/installer.py --plugin $<TARGET_FILE:ncclscope_plugin>)
set_tests_properties(containers_installer PROPERTIES LABELS e2e TIMEOUT 300)

# Programs that are built already, in images made by buildah: half a minute where nobody else computes.
if(TARGET ncclscope-run-job)
  add_test(NAME containers_images
    COMMAND /usr/bin/python3 ${CMAKE_SOURCE_DIR}/tests/e2e/containers/images.py --build ${CMAKE_BINARY_DIR})
  set_tests_properties(containers_images PROPERTIES LABELS e2e TIMEOUT 900 SKIP_RETURN_CODE 77)
endif()
