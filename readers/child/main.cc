/// quire-reader: reads the file on standard input and writes documents to standard output
/// (readers/result_codec.h). ReaderProcess starts it; it is not for people.
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <new>
#include <string>

#include "base/index.h"
#include "readers/child/character_sets.h"
#include "readers/child/sandbox.h"
#include "readers/formats/format.h"
#ifdef QUIRE_HAS_PDF
#include "readers/pdf/pdf_reader.h"
#endif
#include "readers/result_codec.h"

namespace quire {
namespace {

bool write_all(std::string_view bytes) {
  while (!bytes.empty()) {
    const auto n = ::write(1, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes.remove_prefix(to_size(n));
  }
  return true;
}

Result<std::string> read_input(std::uint64_t most) {
  std::string bytes;
  struct stat info;
  if (::fstat(0, &info) == 0 && info.st_size > 0)
    bytes.reserve(static_cast<std::size_t>(info.st_size) + 1);
  char buffer[64 << 10];
  for (;;) {
    const auto n = ::read(0, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Status::internal("the file cannot be read");
    if (n == 0) return bytes;
    bytes.append(buffer, to_size(n));
    if (bytes.size() > most) return Status::exhausted("the file has grown past its limit");
  }
}

template <class T>
bool parse(const char* text, T& out) {
  const std::string_view word(text);
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), out);
  return error == std::errc() && end == word.data() + word.size();
}

int run(char** argv) {
  ReaderRequest request;
  request.name = argv[1];
  request.encoding = argv[2];
  ReaderLimits& limits = request.limits;
  if (!parse(argv[3], limits.file_bytes) || !parse(argv[4], limits.text_bytes) ||
      !parse(argv[5], limits.documents) || !parse(argv[6], limits.memory_bytes) ||
      !parse(argv[7], limits.cpu_seconds))
    return 2;
#ifdef QUIRE_HAS_PDF
  set_pdf_reader(&read_pdf_pages);
#endif
  load_character_sets();
  const Status s = enter_sandbox(
      {.memory_bytes = limits.memory_bytes, .cpu_seconds = limits.cpu_seconds});
  if (!s.ok()) {
    (void)write_all(encode_format("file") + encode_result(s));
    return 0;
  }
  const auto bytes = read_input(limits.file_bytes);
  const Format* format = nullptr;
  Status refused = bytes.status();
  if (bytes.ok()) {
    auto found = detect_format(*bytes, request.name);
    if (found.ok())
      format = *found;
    else
      refused = found.status();
  }
  // The name goes out before the file is parsed: a failure can name its reader.
  if (!write_all(encode_format(format ? format->name : "file"))) return 1;
  if (!format) return write_all(encode_result(refused)) ? 0 : 1;
  const auto result = format->read(*bytes, request);
  return write_all(encode_result(finish_documents(result, request))) ? 0 : 1;
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  if (argc != 8) {
    std::fprintf(stderr, "quire-reader is started by quire; use 'quire ingest FILE'\n");
    return 2;
  }
  int code = 1;
  try {
    code = quire::run(argv);
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "out of memory\n");
  }
  // Destructors of libraries have nothing to save.
  ::_exit(code);
}
