// Mailboxes and mails of any bytes become texts or an error.
#include "tests/fuzz/reader_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  (void)quire::fuzz_reader(&quire::read_mbox, data, size, "file.mbox");
  return quire::fuzz_reader(&quire::read_eml, data, size, "file.eml");
}
