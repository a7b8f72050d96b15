# SPDX-License-Identifier: Apache-2.0
# Checks of the repository itself: who includes whom, what the plugin exports, what the text says.
set(python /usr/bin/python3)

function(ncclscope_repo_check name)
  add_test(NAME ${name} COMMAND ${python} ${ARGN})
  set_tests_properties(${name} PROPERTIES LABELS repo TIMEOUT 60 SKIP_RETURN_CODE 77)
endfunction()

ncclscope_repo_check(repo_includes ${CMAKE_SOURCE_DIR}/tests/repo/check_includes.py)
ncclscope_repo_check(repo_includes_selftest ${CMAKE_SOURCE_DIR}/tests/repo/check_includes.py --selftest)
ncclscope_repo_check(repo_text ${CMAKE_SOURCE_DIR}/tests/repo/check_text.py)
ncclscope_repo_check(repo_text_selftest ${CMAKE_SOURCE_DIR}/tests/repo/check_text.py --selftest)
ncclscope_repo_check(repo_rules ${CMAKE_SOURCE_DIR}/tests/repo/check_rules.py)
ncclscope_repo_check(repo_rules_selftest ${CMAKE_SOURCE_DIR}/tests/repo/check_rules.py --selftest)
ncclscope_repo_check(repo_dashboards ${CMAKE_SOURCE_DIR}/tests/repo/check_dashboards.py)
ncclscope_repo_check(repo_dashboards_selftest ${CMAKE_SOURCE_DIR}/tests/repo/check_dashboards.py --selftest)
ncclscope_repo_check(repo_dashboards_as_generated ${CMAKE_SOURCE_DIR}/dashboards/grafana/generate.py --check)

# The surface is that of the library as it ships; sanitizers add their own.
if(TARGET ncclscope_plugin AND NOT NCCLSCOPE_SANITIZE)
  ncclscope_repo_check(repo_plugin_surface
    ${CMAKE_SOURCE_DIR}/tests/repo/check_plugin_surface.py $<TARGET_FILE:ncclscope_plugin>)
endif()

# What the documentation tells people to type, with the programs as they ship.
ncclscope_repo_check(repo_commands_selftest ${CMAKE_SOURCE_DIR}/tests/repo/check_commands.py --selftest)
if(TARGET ncclscope AND NOT NCCLSCOPE_SANITIZE)
  ncclscope_repo_check(repo_commands
    ${CMAKE_SOURCE_DIR}/tests/repo/check_commands.py $<TARGET_FILE:ncclscope> $<TARGET_FILE:ncclscope-agent>)
endif()
