// PDF files of any bytes become texts or an error.
#include "readers/pdf/pdf_reader.h"
#include "tests/fuzz/reader_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return quire::fuzz_reader(&quire::read_pdf_pages, data, size, "file.pdf");
}
