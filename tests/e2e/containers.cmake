# SPDX-License-Identifier: Apache-2.0
# What goes to a node, and the images that bring it.
if(NCCLSCOPE_SANITIZE OR NOT TARGET ncclscope_plugin)
  return()
endif()

add_test(NAME containers_installer
  COMMAND /usr/bin/python3 ${CMAKE_SOURCE_DIR}/tests/e2e/containers/installer.py --plugin $<TARGET_FILE:ncclscope_plugin>)
set_tests_properties(containers_installer PROPERTIES LABELS e2e TIMEOUT 120)
