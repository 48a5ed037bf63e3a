#include "readers/child/character_sets.h"

#include <iconv.h>

#include <initializer_list>

namespace quire {

void load_character_sets() {
  // Open descriptors keep their tables in memory, so they are not closed.
  for (const char* name :
       {"UTF-16",      "ISO-8859-1",  "ISO-8859-2", "ISO-8859-5", "ISO-8859-7", "ISO-8859-9",
        "ISO-8859-15", "CP1250",      "CP1251",     "CP1252",     "CP1253",     "CP1254",
        "KOI8-R",      "ISO-2022-JP", "SHIFT_JIS",  "EUC-JP",     "EUC-KR",     "GB2312",
        "GBK",         "GB18030",     "BIG5"})
    (void)iconv_open("UTF-8", name);
  (void)iconv_open("UTF-16", "UTF-8");
}

}  // namespace quire
