#include "cachestore/remote/redis_reply.h"

#include <hiredis/hiredis.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

#include "base/index.h"
#include "cachestore/format/record.h"

namespace quire {
namespace {

/// The longest reply is a value; what comes after it may wait with it.
constexpr std::size_t kMostBytes = 2 * (record::kMaxValueBytes + 4096);
constexpr int kMaxItems = 1 << 16;

struct FreeReply {
  void operator()(redisReply* r) const { freeReplyObject(r); }
};
struct FreeReader {
  void operator()(redisReader* r) const { redisReaderFree(r); }
};

bool convert(const redisReply& from, RedisReply* to) {
  const auto text = [&] { to->text.assign(from.str == nullptr ? "" : from.str, from.len); };
  switch (from.type) {
    case REDIS_REPLY_NIL:
      to->kind = RedisReply::Kind::kNil;
      return true;
    case REDIS_REPLY_STRING:
      to->kind = RedisReply::Kind::kString;
      text();
      return true;
    case REDIS_REPLY_STATUS:
      to->kind = RedisReply::Kind::kStatus;
      text();
      return true;
    case REDIS_REPLY_ERROR:
      to->kind = RedisReply::Kind::kError;
      text();
      return true;
    case REDIS_REPLY_INTEGER:
      to->kind = RedisReply::Kind::kInteger;
      to->integer = from.integer;
      return true;
    case REDIS_REPLY_ARRAY:
      to->kind = RedisReply::Kind::kArray;
      to->items.resize(from.elements);
      for (std::size_t i = 0; i < from.elements; ++i)
        if (from.element[i] == nullptr || !convert(*from.element[i], &to->items[i])) return false;
      return true;
    default:
      return false;
  }
}

/// Returns hiredis' own makers of reply objects.
const redisReplyObjectFunctions& plain_functions() {
  static const redisReplyObjectFunctions functions = [] {
    const std::unique_ptr<redisReader, FreeReader> reader(redisReaderCreate());
    return *reader->fn;
  }();
  return functions;
}

/// Refuses arrays with more items than any reply to us has, before memory for them is taken.
void* bounded_array(const redisReadTask* task, int elements) {
  if (elements < 0 || elements > kMaxItems) return nullptr;
  return plain_functions().createArray(task, elements);
}

redisReplyObjectFunctions* bounded_functions() {
  static redisReplyObjectFunctions functions = [] {
    redisReplyObjectFunctions f = plain_functions();
    f.createArray = bounded_array;
    return f;
  }();
  return &functions;
}

}  // namespace

bool RedisReply::is_error(std::string_view word) const {
  return is_error() && text.starts_with(word) &&
         (text.size() == word.size() || text[word.size()] == ' ');
}

void append_redis_command(std::string& out, std::initializer_list<std::string_view> arguments) {
  out += '*' + std::to_string(arguments.size()) + "\r\n";
  for (const std::string_view argument : arguments) {
    out += '$' + std::to_string(argument.size()) + "\r\n";
    out += argument;
    out += "\r\n";
  }
}

struct RedisReplyReader::Impl {
  std::unique_ptr<redisReader, FreeReader> reader{
      redisReaderCreateWithFunctions(bounded_functions())};
  bool broken = false;
};

RedisReplyReader::RedisReplyReader() : impl_(std::make_unique<Impl>()) {
  // An emptied buffer is kept for the next value; hiredis would free it every time.
  impl_->reader->maxbuf = 0;
}
RedisReplyReader::~RedisReplyReader() = default;

Status RedisReplyReader::feed(std::string_view bytes) {
  redisReader* reader = impl_->reader.get();
  if (impl_->broken || reader->len - reader->pos + bytes.size() > kMostBytes ||
      redisReaderFeed(reader, bytes.data(), bytes.size()) != REDIS_OK) {
    impl_->broken = true;
    return Status::io("a reply of Redis is too long");
  }
  return {};
}

Result<std::optional<RedisReply>> RedisReplyReader::next() {
  void* raw = nullptr;
  if (impl_->broken || redisReaderGetReply(impl_->reader.get(), &raw) != REDIS_OK) {
    impl_->broken = true;
    return Status::io("Redis sent bytes that are no reply");
  }
  if (raw == nullptr) return std::optional<RedisReply>();
  const std::unique_ptr<redisReply, FreeReply> reply(static_cast<redisReply*>(raw));
  RedisReply out;
  if (!convert(*reply, &out)) {
    impl_->broken = true;
    return Status::io("Redis sent a reply of an unknown kind");
  }
  return std::optional<RedisReply>(std::move(out));
}

namespace {

constexpr std::size_t kReadBytes = 256u << 10;
/// Read at once where a long string is expected: its line, and the end of the one before.
constexpr std::size_t kBesideStrings = 512;
/// The longest line is an error's.
constexpr std::size_t kMaxLine = 64u << 10;

/// Returns the length that the line of a string names, "$5\r\n"; none: it names none.
std::optional<std::size_t> string_length(std::string_view line) {
  std::size_t length = 0;
  if (line.size() < 4 || line[0] != '$') return std::nullopt;
  const char *first = line.data() + 1, *last = line.data() + line.size() - 2;
  const auto [end, error] = std::from_chars(first, last, length);
  if (error != std::errc() || end != last) return std::nullopt;
  return length;
}

Status no_reply() { return Status::io("Redis sent bytes that are no reply"); }

}  // namespace

RedisReplyStream::RedisReplyStream() : buffer_(kReadBytes, '\0') {}

Status RedisReplyStream::fill(const ReadSome& read, std::size_t most, std::size_t expected) {
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  const std::span<char> room = std::span(buffer_).subspan(end_);
  QUIRE_ASSIGN_OR_RETURN(const std::size_t n,
                         read(room.first(std::min(most, room.size())), {}, expected));
  end_ += n;
  return {};
}

Result<std::string_view> RedisReplyStream::line(const ReadSome& read, std::size_t most) {
  for (std::size_t seen = 0;;) {
    const std::string_view waiting(buffer_.data() + begin_, end_ - begin_);
    const std::size_t end = waiting.find("\r\n", seen);
    if (end != waiting.npos) return waiting.substr(0, end + 2);
    if (waiting.size() > kMaxLine) return no_reply();
    seen = waiting.empty() ? 0 : waiting.size() - 1;  // the "\r" may have come
    QUIRE_RETURN_IF_ERROR(fill(read, most, 0));
  }
}

Status RedisReplyStream::read_string(const ReadSome& read, std::span<std::byte> to,
                                     std::size_t behind) {
  std::size_t n = std::min(to.size(), end_ - begin_);
  std::memcpy(to.data(), buffer_.data() + begin_, n);
  begin_ += n;
  if (n < to.size()) begin_ = end_ = 0;
  while (n < to.size()) {
    const std::size_t left = to.size() - n;
    // The end of the string and the line of the next one come with its last bytes.
    QUIRE_ASSIGN_OR_RETURN(const std::size_t more,
                           read({reinterpret_cast<char*>(to.data()) + n, left},
                                std::span(buffer_).first(kBesideStrings), left + behind));
    n += std::min(more, left);
    end_ = more - std::min(more, left);
  }
  while (end_ - begin_ < 2) QUIRE_RETURN_IF_ERROR(fill(read, kBesideStrings, 0));
  if (std::string_view(buffer_.data() + begin_, 2) != "\r\n") return no_reply();
  begin_ += 2;
  return {};
}

Result<RedisReply> RedisReplyStream::receive(const ReadSome& read, const PlaceString& place,
                                             std::size_t behind) {
  // hiredis gets no byte of the next reply, so that a string which is a whole reply is seen here.
  for (bool begins = true;; begins = false) {
    // What is read beyond the line of a string has to be copied to its place.
    QUIRE_ASSIGN_OR_RETURN(const std::string_view next,
                           line(read, place ? kBesideStrings : kReadBytes));
    const auto length = string_length(next);
    if (begins && length && *length > 0 && *length <= record::kMaxValueBytes + 4096 && place) {
      if (const std::span<std::byte> to = place(*length); to.size() == *length) {
        begin_ += next.size();
        QUIRE_RETURN_IF_ERROR(read_string(read, to, behind));
        RedisReply out;
        out.kind = RedisReply::Kind::kString;
        out.placed = true;
        return out;
      }
    }
    QUIRE_RETURN_IF_ERROR(reader_.feed(next));
    begin_ += next.size();
    for (std::size_t left = length ? *length + 2 : 0; left > 0;) {
      if (begin_ == end_) QUIRE_RETURN_IF_ERROR(fill(read, kReadBytes, left));
      const std::size_t n = std::min(left, end_ - begin_);
      QUIRE_RETURN_IF_ERROR(reader_.feed({buffer_.data() + begin_, n}));
      begin_ += n;
      left -= n;
    }
    QUIRE_ASSIGN_OR_RETURN(std::optional<RedisReply> reply, reader_.next());
    if (reply) return std::move(*reply);
  }
}

}  // namespace quire
