/// Lines of a table in which every value has the name of its column.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "readers/formats/document_builder.h"

namespace quire {

/// TableLines turns rows into lines such as "Name: Ada; City: London", so that a piece of the table
/// is understood without its first row. Threads: one object, one thread.
class TableLines {
 public:
  using Row = std::vector<std::string>;

  /// With `titled`, rows of one text may stand above the table: each is a line of its own.
  explicit TableLines(bool titled) : titled_(titled) {}

  /// Returns the line of the next row; empty: it has none. The first row of the table names the
  /// columns if it can: none of its texts is empty but the first, none a number but years, no two
  /// are the same.
  std::string line(const Row& row);
  /// Returns the names of the columns; empty: they have none.
  const Row& names() const { return names_; }

 private:
  const bool titled_;
  Row names_;
  bool begun_ = false;
};

/// Adds a sheet as a section: its name, then the lines of its rows.
void add_sheet(std::string_view name, std::span<const TableLines::Row> rows,
               DocumentBuilder& builder);

}  // namespace quire
