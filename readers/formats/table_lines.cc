#include "readers/formats/table_lines.h"

#include <algorithm>
#include <cctype>

namespace quire {
namespace {

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

bool is_number(const std::string& field) {
  return !field.empty() && std::ranges::all_of(field, [](char c) {
    return is_digit(c) || c == '.' || c == ',' || c == '-' || c == '+' || c == '%';
  });
}

/// Returns the year that a column is called by; 0: it is none.
int year_of(const std::string& field) {
  if (field.size() != 4 || (field[0] != '1' && field[0] != '2') ||
      !std::ranges::all_of(field, is_digit))
    return 0;
  return std::stoi(field);
}

/// Whether numbers are names of columns all the same: years in equal steps.
bool are_years(const TableLines::Row& numbers) {
  if (numbers.size() < 2) return false;
  const int step = year_of(numbers[1]) - year_of(numbers[0]);
  for (std::size_t i = 0; i < numbers.size(); ++i)
    if (year_of(numbers[i]) == 0 ||
        (i > 0 && year_of(numbers[i]) - year_of(numbers[i - 1]) != step))
      return false;
  return step != 0;
}

bool names_columns(const TableLines::Row& row) {
  if (row.size() < 2 || is_number(row[0])) return false;
  TableLines::Row sorted = row, numbers;
  std::ranges::sort(sorted);
  if (std::ranges::adjacent_find(sorted) != sorted.end()) return false;
  for (std::size_t i = 1; i < row.size(); ++i) {
    if (row[i].empty()) return false;
    if (is_number(row[i])) numbers.push_back(row[i]);
  }
  return numbers.empty() || are_years(numbers);
}

}  // namespace

std::string TableLines::line(const Row& row) {
  const auto texts = std::ranges::count_if(row, [](const std::string& f) { return !f.empty(); });
  if (!begun_ && (!titled_ || texts > 1)) {
    begun_ = true;
    if (names_columns(row)) {
      names_ = row;
      return {};
    }
  }
  std::string line;
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (row[i].empty()) continue;
    if (!line.empty()) line += "; ";
    if (i < names_.size() && !names_[i].empty()) line += names_[i] + ": ";
    line += row[i];
  }
  return line;
}

void add_sheet(std::string_view name, std::span<const TableLines::Row> rows,
               DocumentBuilder& builder) {
  builder.heading(1, name);
  TableLines table(/*titled=*/true);
  bool first = true;
  const auto add = [&](const std::string& line) {
    if (line.empty()) return;
    first ? builder.paragraph(line) : builder.line(line);
    first = false;
  };
  for (const TableLines::Row& row : rows) add(table.line(row));
  if (!first) return;
  for (const std::string& column : table.names()) add(column);  // a table of names only
}

}  // namespace quire
