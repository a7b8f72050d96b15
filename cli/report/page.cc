// SPDX-License-Identifier: Apache-2.0
#include "cli/report/page.h"

#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <stdexcept>

#include "cli/report/svg.h"
#include "cli/text.h"

namespace ncclscope::cli::report {
namespace {

constexpr int kSvgWidth = 1100;
constexpr std::size_t kMostTableRows = 500;  // in the page; files beside it have all

std::string anchor(const std::string& title) {
  std::string out;
  for (const char c : title) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0)
      out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    else if (!out.empty() && out.back() != '-')
      out += '-';
  }
  return out;
}

/// Replaces {{name}} once; what is put in is not looked at again.
std::string filled(std::string_view text,
                   const std::map<std::string, std::string, std::less<>>& values) {
  std::string out;
  for (;;) {
    const std::size_t begin = text.find("{{");
    out += text.substr(0, begin);
    if (begin == std::string_view::npos) return out;
    const std::size_t end = text.find("}}", begin);
    const auto value = values.find(text.substr(begin + 2, end - begin - 2));
    if (end == std::string_view::npos || value == values.end())
      throw std::logic_error("page.html names what nobody fills");
    out += value->second;
    text.remove_prefix(end + 2);
  }
}

bool is_number(Unit unit) {
  return unit != Unit::kText && unit != Unit::kTime;
}

std::string table_html(const PictureTable& table, const std::string& id) {
  std::string out = "<div class=\"scroll\" role=\"region\" aria-label=\"" +
                    html_escaped(table.caption) + "\" tabindex=\"0\"><table" +
                    (id.empty() ? "" : " id=\"" + html_escaped(id) + "\"") + "><caption>" +
                    html_escaped(table.caption);
  const std::size_t shown = std::min(table.rows.size(), kMostTableRows);
  if (shown < table.rows.size())
    out += " (the first " + std::to_string(shown) + " of " + std::to_string(table.rows.size()) +
           " rows)";
  out += "</caption><thead><tr>";
  for (const TableColumn& column : table.columns)
    out += std::string("<th scope=\"col\"") + (is_number(column.unit) ? " class=\"number\"" : "") +
           ">" + html_escaped(column.title) + "</th>";
  out += "</tr></thead><tbody>";
  for (std::size_t r = 0; r < shown; ++r) {
    out += "<tr>";
    for (std::size_t c = 0; c < table.columns.size(); ++c) {
      const nlohmann::json& value = table.rows[r][c];
      const Unit unit = table.columns[c].unit;
      out += is_number(unit) ? "<td class=\"number\"" : "<td";
      // The value itself, for scripts.
      if (value.is_number()) out += " data-value=\"" + value.dump() + "\"";
      out += ">" + html_escaped(formatted(value, unit)) + "</td>";
    }
    out += "</tr>";
  }
  return out + "</tbody></table></div>";
}

std::string figure_html(const Picture& picture) {
  return "<figure><figcaption><h3>" + html_escaped(picture.title) + "</h3><p class=\"quiet\">" +
         html_escaped(picture.text) +
         "</p></figcaption><div class=\"drawing\" role=\"img\" aria-label=\"" +
         html_escaped(picture.title + ". The numbers are in the table below.") +
         "\" data-picture=\"" + html_escaped(picture.name) +
         "\" style=\"height:" + std::to_string(picture.height) +
         "px\"></div><details><summary>Table: " + html_escaped(picture.title) + "</summary>" +
         table_html(picture.table, "table-" + picture.name) + "</details></figure>";
}

std::string section_begin(const std::string& title) {
  const std::string id = "h-" + anchor(title);
  return "<section aria-labelledby=\"" + id + "\"><h2 id=\"" + id + "\">" + html_escaped(title) +
         "</h2>";
}

std::string insights_html(const std::vector<Insight>& insights) {
  std::string out = "<ul class=\"insights\">";
  for (const Insight& insight : insights) {
    const char* weight = insight.weight == Insight::Weight::kFault    ? "fault"
                         : insight.weight == Insight::Weight::kNotice ? "notice"
                                                                      : "good";
    out += std::string("<li class=\"") + weight + "\" data-kind=\"" + html_escaped(insight.kind) +
           "\"><strong>" + html_escaped(insight.text) + "</strong>" + html_escaped(insight.detail) +
           "</li>";
  }
  return out + "</ul>";
}

/// JSON inside a script element: nothing in it can end the element.
std::string script_json(const nlohmann::ordered_json& value) {
  const std::string text =
      value.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace);
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    if (c == '<')
      out += "\\u003c";
    else
      out += c;
  }
  return out;
}

void write_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  if (!out)
    throw std::runtime_error(path.string() + ": cannot be written: " +
                             std::strerror(errno));  // NOLINT(concurrency-mt-unsafe)
}

std::string rounded(double value) {
  char text[32];
  (void)std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

}  // namespace

std::string html_escaped(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

std::string utc_text(std::int64_t ns) {
  const std::time_t seconds = ns / 1'000'000'000;
  std::tm parts{};
  char text[32];
  ::gmtime_r(&seconds, &parts);
  (void)std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts);
  return text;
}

std::string formatted(const nlohmann::json& value, Unit unit) {
  if (value.is_null()) return "-";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  const double number = value.get<double>();
  if (!std::isfinite(number)) return "-";
  switch (unit) {
    case Unit::kBytes:
      return format_bytes(static_cast<std::uint64_t>(std::max(0.0, number)));
    case Unit::kBandwidth:
      return rounded(number * 1e-9) + " GB/s";
    case Unit::kSeconds:
      return number < 0 ? "-" + format_duration(-number) : format_duration(number);
    case Unit::kShare:
      return rounded(number * 100) + " %";
    case Unit::kTime:
      return utc_text(static_cast<std::int64_t>(number));
    case Unit::kCount:
    case Unit::kText:
      return value.is_number_integer() ? value.dump() : rounded(number);
    case Unit::kNumber:
      break;
  }
  return rounded(number);
}

std::string page_text(const Page& page, const DrawingLibrary& library) {
  std::string navigation;
  std::string sections;
  nlohmann::ordered_json options = nlohmann::ordered_json::object();
  const auto link = [&](const std::string& title) {
    navigation += "<li><a href=\"#h-" + anchor(title) + "\">" + html_escaped(title) + "</a></li>";
  };
  link("What stands out");
  for (const PageSection& section : page.sections) {
    link(section.title);
    sections += section_begin(section.title);
    if (!section.text.empty()) sections += "<p>" + html_escaped(section.text) + "</p>";
    for (const PictureTable& table : section.tables) sections += table_html(table, "");
    sections += "</section>\n";
  }
  for (std::size_t i = 0; i < page.pictures.size(); ++i) {
    const Picture& picture = page.pictures[i];
    const bool first = i == 0 || page.pictures[i - 1].section != picture.section;
    const bool last =
        i + 1 == page.pictures.size() || page.pictures[i + 1].section != picture.section;
    if (first) {
      link(picture.section);
      sections += section_begin(picture.section);
    }
    sections += figure_html(picture);
    if (last) sections += "</section>\n";
    options[picture.name] = picture.option;
  }
  std::string facts;
  for (const auto& [name, value] : page.facts)
    facts += "<div><dt>" + html_escaped(name) + "</dt><dd>" + html_escaped(value) + "</dd></div>";
  return filled(page_html(), {{"title", html_escaped(page.heading)},
                              {"heading", html_escaped(page.heading)},
                              {"subheading", html_escaped(page.subheading)},
                              {"navigation", navigation},
                              {"facts", facts},
                              {"insights", insights_html(page.insights)},
                              {"sections", sections},
                              {"version", html_escaped(page.version)},
                              {"licence", html_escaped(library.licence)},
                              {"options", script_json(options)},
                              {"echarts", library.script},
                              {"chart", std::string(chart_script())},
                              {"page", std::string(page_script())}});
}

WrittenPage write_page(const Page& page, const std::string& folder) {
  const DrawingLibrary library = drawing_library();
  WrittenPage out;
  const std::filesystem::path root(folder);
  std::error_code error;
  std::filesystem::create_directories(root / "svg", error);
  if (error) throw std::runtime_error((root / "svg").string() + ": " + error.message());
  out.html = root / "report.html";
  write_file(out.html, page_text(page, library));
  if (page.pictures.empty()) return out;
  SvgRenderer renderer(library);
  for (const Picture& picture : page.pictures) {
    const std::filesystem::path path = root / "svg" / (picture.name + ".svg");
    write_file(path, renderer.render(picture.option, kSvgWidth, picture.height));
    out.svg.push_back(path);
  }
  return out;
}

}  // namespace ncclscope::cli::report
