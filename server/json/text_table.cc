#include "server/json/text_table.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <cstdio>
#include <iterator>
#include <utility>
#include <vector>

#include "server/json/text.h"

namespace quire {
namespace json = boost::json;
namespace {

using Line = std::pair<std::string, std::string>;  ///< name, value

constexpr std::string_view kLeftOut[] = {"object", "first_id", "last_id", "has_more"};

std::string bytes_text(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < std::size(kUnits); ++unit) bytes /= 1024;
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 || bytes >= 100 ? "%.0f %s" : "%.1f %s", bytes,
                kUnits[unit]);
  return text;
}

std::string scalar_text(const std::string& name, const json::value& v) {
  if (v.is_null()) return "-";
  if (v.is_string()) return std::string(v.as_string());
  if (v.is_number() && name.ends_with("bytes")) return bytes_text(v.to_number<double>());
  if (v.is_double()) {
    char text[32];
    std::snprintf(text, sizeof text, "%.6g", v.as_double());
    return text;
  }
  return to_text(v);
}

bool is_table(const json::value& v) {
  return v.is_array() &&
         std::ranges::any_of(v.as_array(), [](const auto& one) { return one.is_object(); });
}

/// Adds the members of an object, and those of objects in it, to `lines`; tables go to `tables`.
void flatten(const json::object& o, const std::string& before, std::vector<Line>& lines,
             std::vector<std::pair<std::string, const json::array*>>& tables) {
  for (const auto& [key, value] : o) {
    const std::string name = before + std::string(key);
    if (std::ranges::count(kLeftOut, std::string_view(name)) > 0) continue;
    if (value.is_object()) {
      flatten(value.as_object(), name + ".", lines, tables);
    } else if (is_table(value)) {
      tables.emplace_back(name, &value.as_array());
    } else if (value.is_array()) {
      std::string all;
      for (const auto& one : value.as_array())
        all += (all.empty() ? "" : ", ") + scalar_text(name, one);
      lines.emplace_back(name, all.empty() ? "none" : all);
    } else {
      lines.emplace_back(name, scalar_text(name, value));
    }
  }
}

/// Returns how many columns a text takes, counting code points.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

void add_padded(std::string& out, const std::string& text, std::size_t width) {
  out += text;
  out.append(width - std::min(width, width_of(text)), ' ');
}

void add_table(const json::array& rows, std::string& out) {
  std::vector<std::string> columns;
  std::vector<std::vector<Line>> cells;
  for (const auto& row : rows) {
    if (!row.is_object()) continue;
    auto& lines = cells.emplace_back();
    std::vector<std::pair<std::string, const json::array*>> inner;
    flatten(row.as_object(), "", lines, inner);
    for (const auto& [name, list] : inner)
      lines.emplace_back(name, std::to_string(list->size()) + " of them");
    for (const auto& [name, _] : lines) {
      if (std::ranges::find(columns, name) == columns.end()) columns.push_back(name);
    }
  }
  const auto cell = [&](const std::vector<Line>& line, const std::string& column) {
    const auto found = std::ranges::find(line, column, &Line::first);
    return found == line.end() ? std::string("-") : found->second;
  };
  std::vector<std::size_t> widths;
  for (const std::string& column : columns) {
    std::size_t width = width_of(column);
    for (const auto& line : cells) width = std::max(width, width_of(cell(line, column)));
    widths.push_back(width);
  }
  const auto add_line = [&](auto&& text_of) {
    std::string line = " ";
    for (std::size_t i = 0; i < columns.size(); ++i) {
      line += " ";
      add_padded(line, text_of(columns[i]), widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  };
  add_line([](const std::string& column) { return column; });
  for (const auto& line : cells)
    add_line([&](const std::string& column) { return cell(line, column); });
}

}  // namespace

std::string text_table(const json::object& reply) {
  std::vector<Line> lines;
  std::vector<std::pair<std::string, const json::array*>> tables;
  flatten(reply, "", lines, tables);
  std::size_t width = 0;
  for (const auto& [name, _] : lines) width = std::max(width, width_of(name));
  std::string out;
  for (const auto& [name, value] : lines) {
    add_padded(out, name, width);
    out += "  " + value + "\n";
  }
  for (const auto& [name, rows] : tables) {
    out += (out.empty() ? "" : "\n") + name + "\n";
    add_table(*rows, out);
  }
  return out.empty() ? "nothing\n" : out;
}

}  // namespace quire
