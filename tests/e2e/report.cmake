# SPDX-License-Identifier: Apache-2.0
# ncclscope report on logs and archives: every number against an independent computation, Parquet read by others, damage,
# exit statuses, memory. Needs DuckDB, pandas and pyarrow (scripts/fetch-duckdb.sh, scripts/fetch-pandas.sh).
if(TARGET ncclscope)
  add_test(NAME report_e2e COMMAND /usr/bin/python3 ${CMAKE_SOURCE_DIR}/tests/e2e/report/report.py --build ${CMAKE_BINARY_DIR})
  add_test(NAME report_bench_sample
    COMMAND /usr/bin/python3 ${CMAKE_SOURCE_DIR}/tests/bench/report/report_bench.py --build ${CMAKE_BINARY_DIR} --sample --ranks 16)
  add_test(NAME report_memory_sample
    COMMAND /usr/bin/python3 ${CMAKE_SOURCE_DIR}/tests/bench/report/report_memory.py --build ${CMAKE_BINARY_DIR} --sample)
  set_tests_properties(report_e2e report_bench_sample report_memory_sample PROPERTIES LABELS e2e TIMEOUT 300 SKIP_RETURN_CODE 77)
endif()
