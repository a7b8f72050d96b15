# SPDX-License-Identifier: Apache-2.0
# What goes where: `cmake --install` and the packages (`cpack -G DEB`, `cpack -G RPM`) use the same rules.
#   component agent   the agent, the command line, service files, rules, dashboards, pages
#   component plugin  the library that NCCL loads; a package of its own, since job images need nothing else
#   component slurm   the SPANK plugin, with its sources for other releases of SLURM, and the scripts: login nodes need no agent
#   component probe   what `ncclscope probe` calls NCCL with; only where it was built
include(GNUInstallDirs)
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY TRUE)  # packing builds nothing: tests and benchmarks are not in there

set(CPACK_COMPONENTS_ALL agent plugin slurm)
if(TARGET ncclscope-probe-worker)
  list(APPEND CPACK_COMPONENTS_ALL probe)
endif()
set(NCCLSCOPE_DATA ${CMAKE_INSTALL_DATADIR}/ncclscope)
set(NCCLSCOPE_PLUGIN_FOLDER lib/ncclscope)  # the same on all distributions: TaskProlog and mounts name it
set(NCCLSCOPE_UNITS lib/systemd/system)

# Libraries are put in place by a rename: a process that starts meanwhile finds the old one or the new one, whole.
function(ncclscope_install_library target folder component)
  install(CODE "
    set(folder \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${folder}\")
    set(name $<TARGET_FILE_NAME:${target}>)
    message(STATUS \"Installing: \${folder}/\${name}\")
    file(MAKE_DIRECTORY \"\${folder}/.new\")
    file(COPY \"$<TARGET_FILE:${target}>\" DESTINATION \"\${folder}/.new\"
      FILE_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
    file(RENAME \"\${folder}/.new/\${name}\" \"\${folder}/\${name}\")
    file(REMOVE_RECURSE \"\${folder}/.new\")
  " COMPONENT ${component})
endfunction()

ncclscope_install_library(ncclscope_plugin ${NCCLSCOPE_PLUGIN_FOLDER} plugin)
install(CODE "
  # On the loader's path, so that its name is enough for NCCL_PROFILER_PLUGIN.
  set(name $<TARGET_FILE_NAME:ncclscope_plugin>)
  set(loader \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_LIBDIR}\")
  file(MAKE_DIRECTORY \"\${loader}\")
  file(RELATIVE_PATH target \"\${loader}\" \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${NCCLSCOPE_PLUGIN_FOLDER}/\${name}\")
  file(CREATE_LINK \"\${target}\" \"\${loader}/.\${name}.new\" SYMBOLIC)
  file(RENAME \"\${loader}/.\${name}.new\" \"\${loader}/\${name}\")
" COMPONENT plugin)
install(FILES ${CMAKE_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/ncclscope-plugin COMPONENT plugin)

if(NOT NCCLSCOPE_BUILD_AGENT)
  return()
endif()

install(TARGETS ncclscope-agent ncclscope RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT agent)
install(TARGETS ncclscope-sim-rank RUNTIME DESTINATION libexec/ncclscope COMPONENT agent)  # ncclscope simulate
if(TARGET ncclscope-probe-worker)
  install(TARGETS ncclscope-probe-worker RUNTIME DESTINATION libexec/ncclscope COMPONENT probe)
  install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/ncclscope-probe COMPONENT probe)
endif()
install(FILES deploy/systemd/ncclscope-agent.service deploy/systemd/ncclscope-agent.socket
  DESTINATION ${NCCLSCOPE_UNITS} COMPONENT agent)
install(FILES deploy/systemd/ncclscope.sysusers DESTINATION lib/sysusers.d RENAME ncclscope.conf COMPONENT agent)
install(FILES deploy/systemd/ncclscope.tmpfiles DESTINATION lib/tmpfiles.d RENAME ncclscope.conf COMPONENT agent)
install(FILES deploy/systemd/network.conf deploy/systemd/squeue.conf DESTINATION ${NCCLSCOPE_DATA}/systemd COMPONENT agent)
install(PROGRAMS deploy/slurm/prolog.sh deploy/slurm/epilog.sh deploy/slurm/task_prolog.sh
  DESTINATION ${NCCLSCOPE_DATA}/slurm COMPONENT slurm)
install(FILES deploy/slurm/plugstack.conf DESTINATION ${NCCLSCOPE_DATA}/slurm COMPONENT slurm)
install(PROGRAMS deploy/slurm/enroot/50-ncclscope.sh DESTINATION ${NCCLSCOPE_DATA}/slurm/enroot COMPONENT slurm)
install(PROGRAMS deploy/slurm/spank/build.sh DESTINATION ${NCCLSCOPE_DATA}/slurm/spank COMPONENT slurm)
install(FILES deploy/slurm/spank/choice.cc deploy/slurm/spank/choice.h deploy/slurm/spank/exports.map
  deploy/slurm/spank/ncclscope_spank.cc DESTINATION ${NCCLSCOPE_DATA}/slurm/spank COMPONENT slurm)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/ncclscope-slurm COMPONENT slurm)
set(for_slurm "SLURM's headers were missing, so the SPANK plugin has to be built on the spot")
if(TARGET ncclscope_spank)
  # By its path in plugstack.conf, which is the same on all nodes: SLURM's own folder of plugins is elsewhere on each distribution.
  ncclscope_install_library(ncclscope_spank lib/ncclscope-slurm slurm)
  set(for_slurm "the SPANK plugin is for SLURM ${NCCLSCOPE_SLURM_VERSION}")
endif()
install(FILES deploy/prometheus/recording.yml deploy/prometheus/alerts.yml deploy/prometheus/alertmanager.yml
  DESTINATION ${NCCLSCOPE_DATA}/prometheus COMPONENT agent)
install(DIRECTORY dashboards/grafana/ DESTINATION ${NCCLSCOPE_DATA}/grafana COMPONENT agent FILES_MATCHING PATTERN "*.json")
# What `ncclscope report` draws with, where scripts/fetch-echarts.sh has brought it; reports have no pictures without.
set(cache "$ENV{XDG_CACHE_HOME}")
if(NOT cache)
  set(cache "$ENV{HOME}/.cache")
endif()
foreach(file echarts.min.js LICENSE NOTICE)
  install(FILES ${cache}/ncclscope/echarts-6.1.0/${file} DESTINATION ${NCCLSCOPE_DATA}/echarts COMPONENT agent OPTIONAL)
endforeach()
install(FILES deploy/systemd/agent.toml DESTINATION /etc/ncclscope COMPONENT agent)
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/ncclscope COMPONENT agent FILES_MATCHING PATTERN "*.md")
install(FILES LICENSE README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/ncclscope COMPONENT agent)

set(CPACK_PACKAGE_NAME ncclscope)
set(CPACK_PACKAGE_VENDOR ncclscope)
set(CPACK_PACKAGE_CONTACT "ncclscope maintainers <ncclscope@example.org>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Cluster telemetry for NCCL")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES TRUE)
set(CPACK_OUTPUT_FILE_PREFIX ${CMAKE_BINARY_DIR}/packages)
set(CPACK_COMPONENT_AGENT_DESCRIPTION "The node's agent of ncclscope, its command line, rules and dashboards")
set(CPACK_COMPONENT_PROBE_DESCRIPTION "What ncclscope probe measures NCCL with, for nodes with GPUs")
set(CPACK_COMPONENT_PLUGIN_DESCRIPTION "The NCCL profiler plugin of ncclscope, for job nodes and images")

set(CPACK_COMPONENT_SLURM_DESCRIPTION "ncclscope for jobs of SLURM: option --ncclscope, prologs, containers; ${for_slurm}")

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_ENABLE_COMPONENT_DEPENDS OFF)
set(CPACK_DEBIAN_AGENT_PACKAGE_NAME ncclscope)
set(CPACK_DEBIAN_AGENT_PACKAGE_SECTION admin)
set(CPACK_DEBIAN_AGENT_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_AGENT_PACKAGE_RECOMMENDS ncclscope-plugin)
set(CPACK_DEBIAN_AGENT_PACKAGE_SUGGESTS ncclscope-slurm)
set(CPACK_DEBIAN_AGENT_PACKAGE_CONTROL_EXTRA
  "${CMAKE_SOURCE_DIR}/deploy/debian/postinst;${CMAKE_SOURCE_DIR}/deploy/debian/prerm;${CMAKE_SOURCE_DIR}/deploy/debian/postrm;${CMAKE_SOURCE_DIR}/deploy/debian/conffiles")
set(CPACK_DEBIAN_AGENT_PACKAGE_CONTROL_STRICT_PERMISSION TRUE)
set(CPACK_DEBIAN_PLUGIN_PACKAGE_NAME ncclscope-plugin)
set(CPACK_DEBIAN_PLUGIN_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_PLUGIN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_SLURM_PACKAGE_NAME ncclscope-slurm)
set(CPACK_DEBIAN_SLURM_PACKAGE_SECTION admin)
set(CPACK_DEBIAN_SLURM_PACKAGE_SHLIBDEPS ON)

# NCCL and the CUDA runtime come from many places (NVIDIA's packages, Python wheels, modules), under many names: that the
# loader finds libnccl.so.2 is up to who installs the probe, and the command says so if it does not.
set(CPACK_DEBIAN_PROBE_PACKAGE_NAME ncclscope-probe)
set(CPACK_DEBIAN_PROBE_PACKAGE_SECTION admin)
set(CPACK_DEBIAN_PROBE_PACKAGE_SHLIBDEPS OFF)
set(CPACK_DEBIAN_PROBE_PACKAGE_DEPENDS "ncclscope, libc6, libstdc++6, libgcc-s1")
set(CPACK_DEBIAN_PROBE_PACKAGE_SUGGESTS "libnccl2")

set(CPACK_RPM_COMPONENT_INSTALL ON)
set(CPACK_RPM_FILE_NAME RPM-DEFAULT)
set(CPACK_RPM_PACKAGE_LICENSE "Apache-2.0")
set(CPACK_RPM_AGENT_PACKAGE_NAME ncclscope)
set(CPACK_RPM_PLUGIN_PACKAGE_NAME ncclscope-plugin)
set(CPACK_RPM_SLURM_PACKAGE_NAME ncclscope-slurm)
set(CPACK_RPM_PROBE_PACKAGE_NAME ncclscope-probe)
set(CPACK_RPM_PROBE_PACKAGE_AUTOREQ OFF)
set(CPACK_RPM_PROBE_PACKAGE_REQUIRES "ncclscope")
set(CPACK_RPM_AGENT_POST_INSTALL_SCRIPT_FILE ${CMAKE_SOURCE_DIR}/deploy/rpm/post.sh)
set(CPACK_RPM_AGENT_PRE_UNINSTALL_SCRIPT_FILE ${CMAKE_SOURCE_DIR}/deploy/rpm/preun.sh)
set(CPACK_RPM_AGENT_POST_UNINSTALL_SCRIPT_FILE ${CMAKE_SOURCE_DIR}/deploy/rpm/postun.sh)
set(CPACK_RPM_AGENT_USER_FILELIST "%config(noreplace) /etc/ncclscope/agent.toml")
set(CPACK_RPM_EXCLUDE_FROM_AUTO_FILELIST_ADDITION /etc /etc/ncclscope /lib /usr/lib/systemd /usr/lib/systemd/system
  /usr/lib/sysusers.d /usr/lib/tmpfiles.d /usr/share/doc)
include(CPack)
