#include "cachestore/remote/redis_reply.h"

#include <hiredis/hiredis.h>

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

}  // namespace quire
