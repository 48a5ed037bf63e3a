#include "cachestore/redis/redis_reply.h"

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

Result<bool> RedisReplyStream::fill(const ReadSome& read, std::size_t most) {
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  const std::span<char> room = std::span(buffer_).subspan(end_);
  QUIRE_ASSIGN_OR_RETURN(const std::size_t n, read(room.first(std::min(most, room.size())), {}));
  end_ += n;
  return n > 0;
}

Result<std::optional<std::string_view>> RedisReplyStream::line(const ReadSome& read,
                                                               std::size_t most) {
  for (;;) {
    const std::string_view waiting(buffer_.data() + begin_, end_ - begin_);
    const std::size_t end = waiting.find("\r\n", searched_);
    if (end != waiting.npos) {
      searched_ = 0;
      return std::optional(waiting.substr(0, end + 2));
    }
    if (waiting.size() > kMaxLine) return no_reply();
    searched_ = waiting.empty() ? 0 : waiting.size() - 1;  // the "\r" may have come
    QUIRE_ASSIGN_OR_RETURN(const bool come, fill(read, most));
    if (!come) return std::optional<std::string_view>();
  }
}

Result<bool> RedisReplyStream::read_placed(const ReadSome& read) {
  while (!to_.empty()) {
    // The end of the string and the line of the next one come with its last bytes.
    QUIRE_ASSIGN_OR_RETURN(const std::size_t n,
                           read({reinterpret_cast<char*>(to_.data()), to_.size()},
                                std::span(buffer_).first(kBesideStrings)));
    if (n == 0) return false;
    const std::size_t placed = std::min(n, to_.size());
    to_ = to_.subspan(placed);
    begin_ = 0;
    end_ = n - placed;
  }
  while (end_ - begin_ < 2) {
    QUIRE_ASSIGN_OR_RETURN(const bool come, fill(read, kBesideStrings));
    if (!come) return false;
  }
  if (std::string_view(buffer_.data() + begin_, 2) != "\r\n") return no_reply();
  begin_ += 2;
  return true;
}

Result<bool> RedisReplyStream::read_string(const ReadSome& read) {
  while (left_ > 0) {
    if (begin_ == end_) {
      QUIRE_ASSIGN_OR_RETURN(const bool come, fill(read, kReadBytes));
      if (!come) return false;
    }
    const std::size_t n = std::min(left_, end_ - begin_);
    QUIRE_RETURN_IF_ERROR(reader_.feed({buffer_.data() + begin_, n}));
    begin_ += n;
    left_ -= n;
  }
  return true;
}

Result<std::optional<RedisReply>> RedisReplyStream::receive(const ReadSome& read,
                                                            const PlaceString& place) {
  const std::optional<RedisReply> none;
  // hiredis gets no byte of the next reply, so that a string which is a whole reply is seen here.
  for (;;) {
    if (part_ == Part::kPlacedString) {
      QUIRE_ASSIGN_OR_RETURN(const bool whole, read_placed(read));
      if (!whole) return none;
      part_ = Part::kLine;
      begins_ = true;
      RedisReply out;
      out.kind = RedisReply::Kind::kString;
      out.placed = true;
      return std::optional(std::move(out));
    }
    if (part_ == Part::kString) {
      QUIRE_ASSIGN_OR_RETURN(const bool whole, read_string(read));
      if (!whole) return none;
      part_ = Part::kLine;
      QUIRE_ASSIGN_OR_RETURN(std::optional<RedisReply> reply, reader_.next());
      begins_ = reply.has_value();
      if (reply) return reply;
    }
    // What is read beyond the line of a string has to be copied to its place.
    QUIRE_ASSIGN_OR_RETURN(const auto next, line(read, place ? kBesideStrings : kReadBytes));
    if (!next) return none;
    const auto length = string_length(*next);
    const bool may_be_placed = begins_ && place && length && *length > 0 &&
                               *length <= record::kMaxValueBytes + 4096;
    to_ = may_be_placed ? place(*length) : std::span<std::byte>();
    if (!to_.empty() && to_.size() == *length) {
      begin_ += next->size();
      const std::size_t n = std::min(to_.size(), end_ - begin_);
      std::memcpy(to_.data(), buffer_.data() + begin_, n);
      begin_ += n;
      to_ = to_.subspan(n);
      part_ = Part::kPlacedString;
    } else {
      QUIRE_RETURN_IF_ERROR(reader_.feed(*next));
      begin_ += next->size();
      left_ = length ? *length + 2 : 0;
      part_ = Part::kString;
    }
  }
}

}  // namespace quire
