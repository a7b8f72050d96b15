# SPDX-License-Identifier: Apache-2.0
# ncclscope report on logs and archives: every number against an independent computation, Parquet read by others, damage,
# exit statuses, memory. Needs DuckDB, pandas and pyarrow (scripts/fetch-duckdb.sh, scripts/fetch-pandas.sh).
if(TARGET ncclscope)
  add_test(NAME report_e2e COMMAND /usr/bin/python3 ${CMAKE_SOURCE_DIR}/tests/e2e/report/report.py --build ${CMAKE_BINARY_DIR})
  add_test(NAME report_bench_sample
    COMMAND /usr/bin/python3 ${CMAKE_SOURCE_DIR}/tests/bench/report/report_bench.py --build ${CMAKE_BINARY_DIR} --sample --ranks 16)
  set_tests_properties(report_e2e report_bench_sample PROPERTIES LABELS e2e TIMEOUT 300 SKIP_RETURN_CODE 77)
  foreach(kind lines sizes communicators)
    add_test(NAME report_memory_${kind}
      COMMAND /usr/bin/python3 ${CMAKE_SOURCE_DIR}/tests/bench/report/report_memory.py --build ${CMAKE_BINARY_DIR}
        --kind ${kind} --threads 8 --sample)
    set_tests_properties(report_memory_${kind} PROPERTIES LABELS e2e TIMEOUT 300 SKIP_RETURN_CODE 77)
  endforeach()
endif()
