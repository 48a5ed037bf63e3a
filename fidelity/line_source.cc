#include "fidelity/line_source.h"

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/index.h"

namespace quire {
namespace {

constexpr std::size_t kPiece = 64 << 10;

class BufferedLines : public LineSource {
 public:
  Result<std::optional<std::string>> next() override {
    for (;;) {
      const auto end = buffer_.find('\n', searched_);
      if (end != std::string::npos || (over_ && at_ < buffer_.size())) {
        const std::size_t stop = end == std::string::npos ? buffer_.size() : end;
        std::string line = buffer_.substr(at_, stop - at_);
        at_ = searched_ = end == std::string::npos ? stop : end + 1;
        if (!line.empty() && line.back() == '\r') line.pop_back();
        ++line_number_;
        return std::optional<std::string>(std::move(line));
      }
      if (over_) return std::optional<std::string>();
      buffer_.erase(0, at_);
      at_ = 0;
      searched_ = buffer_.size();
      if (buffer_.size() > kMaxLineBytes) {
        return Status::invalid("suite", "line " + std::to_string(line_number_ + 1) +
                                            " is longer than " + std::to_string(kMaxLineBytes) +
                                            " bytes");
      }
      QUIRE_ASSIGN_OR_RETURN(const std::size_t got, read_more(buffer_));
      over_ = got == 0;
    }
  }

 protected:
  /// Appends at most one piece and returns its bytes; 0: the end.
  virtual Result<std::size_t> read_more(std::string& buffer) = 0;

 private:
  std::string buffer_;
  std::size_t at_ = 0, searched_ = 0;
  bool over_ = false;
};

/// zlib's gzread also reads plain files unchanged.
class FileLines final : public BufferedLines {
 public:
  explicit FileLines(gzFile file) : file_(file) {}
  FileLines(const FileLines&) = delete;
  FileLines& operator=(const FileLines&) = delete;
  ~FileLines() override { gzclose_r(file_); }

 protected:
  Result<std::size_t> read_more(std::string& buffer) override {
    const std::size_t before = buffer.size();
    buffer.resize(before + kPiece);
    const int got = gzread(file_, buffer.data() + before, static_cast<unsigned>(kPiece));
    buffer.resize(before + to_size(got > 0 ? got : 0));
    int code = Z_OK;
    const char* text = gzerror(file_, &code);
    // A truncated gzip stream gives a short count and Z_BUF_ERROR.
    if (got < 0 || code == Z_BUF_ERROR || code == Z_DATA_ERROR) {
      const std::string where = "after line " + std::to_string(line_number_) + ": ";
      if (code == Z_ERRNO) return Status::io(where + std::strerror(errno));
      return Status::corruption(where + (code == Z_BUF_ERROR
                                             ? "the gzip file ends early"
                                             : std::string("the gzip file is damaged: ") + text));
    }
    return to_size(got);
  }

 private:
  gzFile file_;
};

class MemoryLines final : public BufferedLines {
 public:
  explicit MemoryLines(std::string bytes) : bytes_(std::move(bytes)) {}

 protected:
  Result<std::size_t> read_more(std::string& buffer) override {
    const std::size_t n = std::min(kPiece, bytes_.size() - at_);
    buffer.append(bytes_, at_, n);
    at_ += n;
    return n;
  }

 private:
  std::string bytes_;
  std::size_t at_ = 0;
};

}  // namespace

Result<std::unique_ptr<LineSource>> open_lines(const std::string& path) {
  std::error_code ec;
  const auto status = std::filesystem::status(path, ec);
  if (!std::filesystem::exists(status))
    return Status::not_found("no such file: " + path).with_field("suite");
  if (std::filesystem::is_directory(status))
    return Status::io(path + " is a folder, not a file").with_field("suite");
  gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr)
    return Status::io("cannot read " + path + ": " + std::strerror(errno)).with_field("suite");
  gzbuffer(file, 128 << 10);
  return std::unique_ptr<LineSource>(std::make_unique<FileLines>(file));
}

std::unique_ptr<LineSource> lines_of(std::string bytes) {
  return std::make_unique<MemoryLines>(std::move(bytes));
}

}  // namespace quire
