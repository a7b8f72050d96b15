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

std::string operations_view(const std::string& output, const std::string& view) {
  // A job id that is all digits must stay text, whatever the other folders are called.
  return "CREATE OR REPLACE VIEW " + view + " AS SELECT * FROM read_parquet(" +
         sql_literal(output + "/" + kOperationsFolder + "/*/*.parquet") +
         ", hive_partitioning = true, hive_types = {'" + kJobColumn + "': VARCHAR})";
}

}  // namespace ncclscope::cli::report
