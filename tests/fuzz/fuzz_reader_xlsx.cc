// Workbooks of any bytes become texts or an error.
#include "tests/fuzz/reader_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return quire::fuzz_reader(&quire::read_xlsx, data, size, "file.xlsx");
}
