# SPDX-License-Identifier: Apache-2.0
ncclscope_test(agent_socket_test
  SOURCES integration/agent/socket_test.cc
  LINK ncclscope_agent_app
  LABELS integration sanitize)

ncclscope_test(agent_program_test
  SOURCES integration/agent/program_test.cc
  LINK ncclscope_agent_app
  LABELS integration sanitize)
target_compile_definitions(agent_program_test PRIVATE
  NCCLSCOPE_AGENT_PROGRAM="$<TARGET_FILE:ncclscope-agent>")
add_dependencies(agent_program_test ncclscope-agent)

ncclscope_test(agent_written_paths_test
  SOURCES integration/agent/written_paths_test.cc
  LINK ncclscope_agent_app
  LABELS integration sanitize)
target_compile_definitions(agent_written_paths_test PRIVATE
  NCCLSCOPE_AGENT_PROGRAM="$<TARGET_FILE:ncclscope-agent>")
add_dependencies(agent_written_paths_test ncclscope-agent)

ncclscope_test(agent_tenancy_test
  SOURCES integration/agent/tenancy_test.cc
  LINK ncclscope_agent_app
  LABELS integration sanitize)

ncclscope_test(agent_squeue_test
  SOURCES integration/agent/squeue_test.cc
  LINK ncclscope_agent_app
  LABELS integration sanitize)

# The commands of docs/security.md, and the agent with what they made.
add_test(NAME agent_security_document
  COMMAND /usr/bin/python3 ${CMAKE_CURRENT_SOURCE_DIR}/integration/agent/security_doc.py
    $<TARGET_FILE:ncclscope-agent> $<TARGET_FILE:ncclscope> ${CMAKE_SOURCE_DIR}/docs/security.md)
set_tests_properties(agent_security_document PROPERTIES LABELS integration TIMEOUT 240)

ncclscope_executable(agent_identity_peer
  SOURCES integration/agent/identity_peer.cc
  LINK ncclscope_agent_app GTest::gtest)
ncclscope_test(agent_identity_process_test
  SOURCES integration/agent/identity_test.cc
  LINK ncclscope_agent_app ncclscope_agent_export
  LABELS integration sanitize)
target_compile_definitions(agent_identity_process_test PRIVATE
  NCCLSCOPE_IDENTITY_PEER="$<TARGET_FILE:agent_identity_peer>")
add_dependencies(agent_identity_process_test agent_identity_peer)
