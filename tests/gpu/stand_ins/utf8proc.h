// The part of utf8proc that templates use, for ASCII only; other characters have no case.
#pragma once

#include <cstdint>

using utf8proc_int32_t = std::int32_t;
enum utf8proc_category_t {
  UTF8PROC_CATEGORY_CN,
  UTF8PROC_CATEGORY_LU,
  UTF8PROC_CATEGORY_LL,
  UTF8PROC_CATEGORY_LT,
  UTF8PROC_CATEGORY_LM,
  UTF8PROC_CATEGORY_LO,
  UTF8PROC_CATEGORY_ND,
  UTF8PROC_CATEGORY_NL,
  UTF8PROC_CATEGORY_NO,
};
inline utf8proc_category_t utf8proc_category(utf8proc_int32_t c) {
  if (c >= 'a' && c <= 'z') return UTF8PROC_CATEGORY_LL;
  if (c >= 'A' && c <= 'Z') return UTF8PROC_CATEGORY_LU;
  return c >= '0' && c <= '9' ? UTF8PROC_CATEGORY_ND : UTF8PROC_CATEGORY_CN;
}
inline utf8proc_int32_t utf8proc_toupper(utf8proc_int32_t c) {
  return c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c;
}
inline utf8proc_int32_t utf8proc_tolower(utf8proc_int32_t c) {
  return c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c;
}
