// SPDX-License-Identifier: Apache-2.0
#include "cli/report/schema.h"

namespace ncclscope::cli::report {

std::string sql_literal(const std::string& text) {
  std::string literal = "'";
  for (const char character : text) {
    literal += character;
    if (character == '\'') literal += '\'';
  }
  return literal + "'";
}

namespace {

const char* sql_type(ColumnType type) {
  switch (type) {
    case ColumnType::kText:
      return "VARCHAR";
    case ColumnType::kInt32:
      return "INTEGER";
    case ColumnType::kInt64:
      return "BIGINT";
    case ColumnType::kDouble:
      break;
  }
  return "DOUBLE";
}

}  // namespace

std::string operations_view(const std::string& output, const std::string& view) {
  std::string all;
  for (const Column& column : kColumns)
    all += std::string("NULL::") + sql_type(column.type) + " AS " + column.name + ", ";
  // Files of different kinds of input have different columns.
  // A job id that is all digits must stay text, whatever the other folders are called.
  return "CREATE OR REPLACE VIEW " + view + " AS SELECT * FROM (SELECT " + all +
         "NULL::VARCHAR AS " + kJobColumn +
         " WHERE false) UNION ALL BY NAME SELECT * FROM read_parquet(" +
         sql_literal(output + "/" + kOperationsFolder + "/*/*.parquet") +
         ", union_by_name = true, hive_partitioning = true, hive_types = {'" + kJobColumn +
         "': VARCHAR})";
}

}  // namespace ncclscope::cli::report
