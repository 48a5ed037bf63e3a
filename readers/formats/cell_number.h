/// Numbers of spreadsheets as a person sees them.
#pragma once

#include <string>
#include <string_view>

namespace quire {

/// Returns the code of a number format that every workbook has (ECMA-376, part 1, 18.8.30); empty:
/// there is none of this number.
std::string_view built_in_format(int id);

/// Returns the number as its format code asks: a date as 2024-05-31, a time as 13:45, a share as
/// 7.5%, and any other number in full. `since_1904` says which day is 0.
std::string shown_number(double value, std::string_view format, bool since_1904);

}  // namespace quire
