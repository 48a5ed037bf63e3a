#include "ingest/job_record.h"

#include <cstdio>
#include <cstring>
#include <type_traits>

namespace quire {
namespace {

constexpr std::uint32_t kJobMagic = 0x314a4251;    // "QBJ1"
constexpr std::uint32_t kInputMagic = 0x31494251;  // "QBI1"

class Writer {
 public:
  template <class T>
  void number(T value) {
    if constexpr (std::is_enum_v<T>) {
      number(static_cast<std::underlying_type_t<T>>(value));
    } else {
      for (std::size_t i = 0; i < sizeof(T); ++i) out_.push_back(static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * i)));
    }
  }
  void text(std::string_view s) {
    number(static_cast<std::uint32_t>(s.size()));
    out_.append(s);
  }
  template <class T, class Put>
  void optional(const std::optional<T>& value, Put put) {
    number<std::uint8_t>(value.has_value());
    if (value) put(*value);
  }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

/// Never reads past the end; after the first failure everything is zero or empty and ok() is false.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : in_(bytes) {}

  template <class T>
  T number() {
    if constexpr (std::is_enum_v<T>) {
      return static_cast<T>(number<std::underlying_type_t<T>>());
    } else {
      if (!need(sizeof(T))) return T{};
      std::uint64_t value = 0;
      for (std::size_t i = 0; i < sizeof(T); ++i) value |= static_cast<std::uint64_t>(static_cast<unsigned char>(in_[i])) << (8 * i);
      in_.remove_prefix(sizeof(T));
      return static_cast<T>(value);
    }
  }
  /// An enumerator up to `last`.
  template <class T>
  T choice(T last) {
    const T value = number<T>();
    if (static_cast<int>(value) > static_cast<int>(last)) fail();
    return ok_ ? value : T{};
  }
  bool flag() { return number<std::uint8_t>() != 0; }
  std::string_view view() {
    const auto size = number<std::uint32_t>();
    if (!need(size)) return {};
    const std::string_view s = in_.substr(0, size);
    in_.remove_prefix(size);
    return s;
  }
  std::string text() { return std::string(view()); }
  /// A count of things of at least `min_bytes` each.
  std::uint32_t count(std::size_t min_bytes) {
    const auto n = number<std::uint32_t>();
    if (static_cast<std::uint64_t>(n) * min_bytes > in_.size()) fail();
    return ok_ ? n : 0;
  }
  bool ok() const { return ok_; }
  bool at_end() const { return in_.empty(); }
  void fail() { ok_ = false, in_ = {}; }

 private:
  bool need(std::size_t n) {
    if (ok_ && in_.size() >= n) return true;
    fail();
    return false;
  }
  std::string_view in_;
  bool ok_ = true;
};

void put_settings(Writer& w, const JobSettings& s) {
  w.number(s.if_exists);
  w.number(s.chunking.strategy);
  w.number(s.chunking.max_tokens);
  w.number(s.chunking.overlap_tokens);
  w.text(s.chunking.separator);
  w.optional(s.ttl_seconds, [&](std::uint64_t v) { w.number(v); });
  w.number(s.ttl_anchor);
  w.number<std::uint8_t>(s.pinned);
  w.text(s.tier);
  w.text({reinterpret_cast<const char*>(s.salt_digest.bytes.data()), s.salt_digest.bytes.size()});
  w.optional(s.if_match, [&](const std::string& v) { w.text(v); });
  w.number<std::uint8_t>(s.if_none_match_any);
  w.number<std::uint8_t>(s.in_batch);
}

JobSettings get_settings(Reader& r) {
  JobSettings s;
  s.if_exists = r.choice(IfExists::kError);
  s.chunking.strategy = r.choice(ChunkStrategy::kNone);
  s.chunking.max_tokens = r.number<std::int32_t>();
  s.chunking.overlap_tokens = r.number<std::int32_t>();
  s.chunking.separator = r.text();
  if (r.flag()) s.ttl_seconds = r.number<std::uint64_t>();
  s.ttl_anchor = r.choice(TtlAnchor::kLastUsed);
  s.pinned = r.flag();
  s.tier = r.text();
  const std::string_view digest = r.view();
  if (digest.size() == s.salt_digest.bytes.size()) {
    std::memcpy(s.salt_digest.bytes.data(), digest.data(), digest.size());
  } else {
    r.fail();
  }
  if (r.flag()) s.if_match = r.text();
  s.if_none_match_any = r.flag();
  s.in_batch = r.flag();
  return s;
}

void put_item(Writer& w, const ItemRecord& item) {
  w.number(item.view.index);
  w.text(item.view.id);
  w.number(item.view.result);
  w.number(item.view.status);
  w.number(item.view.tokens);
  w.number(item.view.blocks);
  w.optional(item.view.error, [&](const ItemError& e) {
    w.text(e.code);
    w.text(e.message);
    w.text(e.param);
  });
  w.text(item.content_hash);
  w.number(item.input_bytes);
  w.number(item.pack);
  w.number<std::uint8_t>(item.given_id);
  w.number(item.written_tokens);
  w.number(item.deduplicated_tokens);
}

ItemRecord get_item(Reader& r) {
  ItemRecord item;
  item.view.index = r.number<std::int32_t>();
  item.view.id = r.text();
  item.view.result = r.choice(ItemResult::kWarmed);
  item.view.status = r.choice(DocumentStatus::kDeleting);
  item.view.tokens = r.number<std::uint64_t>();
  item.view.blocks = r.number<std::uint64_t>();
  if (r.flag()) {
    ItemError e;
    e.code = r.text();
    e.message = r.text();
    e.param = r.text();
    item.view.error = std::move(e);
  }
  item.content_hash = r.text();
  item.input_bytes = r.number<std::uint64_t>();
  item.pack = r.number<std::uint32_t>();
  item.given_id = r.flag();
  item.written_tokens = r.number<std::uint64_t>();
  item.deduplicated_tokens = r.number<std::uint64_t>();
  return item;
}

}  // namespace

std::string encode_job(const JobRecord& job) {
  Writer w;
  w.number(kJobMagic);
  w.text(job.id);
  w.text(job.ns);
  w.number(job.type);
  w.number(job.status);
  w.number(job.created_ms);
  w.number(job.started_ms);
  w.number(job.finished_ms);
  w.number<std::uint8_t>(job.cancelled);
  w.number(job.num_packs);
  put_settings(w, job.settings);
  w.number(static_cast<std::uint32_t>(job.items.size()));
  for (const ItemRecord& item : job.items) put_item(w, item);
  return w.take();
}

Result<JobRecord> decode_job(std::string_view bytes) {
  Reader r(bytes);
  if (r.number<std::uint32_t>() != kJobMagic) return Status::corruption("a job record does not begin with this version's mark");
  JobRecord job;
  job.id = r.text();
  job.ns = r.text();
  job.type = r.choice(JobType::kWarm);
  job.status = r.choice(JobStatus::kCancelled);
  job.created_ms = r.number<std::int64_t>();
  job.started_ms = r.number<std::int64_t>();
  job.finished_ms = r.number<std::int64_t>();
  job.cancelled = r.flag();
  job.num_packs = r.number<std::uint32_t>();
  job.settings = get_settings(r);
  const std::uint32_t n = r.count(48);
  job.items.reserve(n);
  for (std::uint32_t i = 0; i < n && r.ok(); ++i) job.items.push_back(get_item(r));
  if (!r.ok() || !r.at_end() || job.id.empty()) return Status::corruption("a job record is cut short or damaged");
  return job;
}

std::string encode_inputs(const InputPack& pack) {
  Writer w;
  w.number(kInputMagic);
  w.number(static_cast<std::uint32_t>(pack.size()));
  for (const auto& [index, input] : pack) {
    Writer one;
    one.optional(input->id, [&](const std::string& v) { one.text(v); });
    one.text(input->title);
    one.optional(input->text, [&](const std::string& v) { one.text(v); });
    one.optional(input->chunks, [&](const std::vector<std::string>& v) {
      one.number(static_cast<std::uint32_t>(v.size()));
      for (const std::string& c : v) one.text(c);
    });
    one.text(input->metadata_json);
    w.number(index);
    w.text(one.take());
  }
  return w.take();
}

Result<DocumentInput> decode_input(std::string_view bytes, std::int32_t index) {
  Reader r(bytes);
  if (r.number<std::uint32_t>() != kInputMagic) return Status::corruption("an input record does not begin with this version's mark");
  const std::uint32_t n = r.count(8);
  for (std::uint32_t i = 0; i < n && r.ok(); ++i) {
    const bool wanted = r.number<std::int32_t>() == index;
    const std::string_view body = r.view();
    if (!r.ok() || !wanted) continue;
    Reader one(body);
    DocumentInput input;
    if (one.flag()) input.id = one.text();
    input.title = one.text();
    if (one.flag()) input.text = one.text();
    if (one.flag()) {
      const std::uint32_t chunks = one.count(4);
      input.chunks.emplace();
      for (std::uint32_t c = 0; c < chunks && one.ok(); ++c) input.chunks->push_back(one.text());
    }
    input.metadata_json = one.text();
    if (!one.ok() || !one.at_end()) return Status::corruption("an input record is damaged");
    return input;
  }
  if (!r.ok()) return Status::corruption("an input record is cut short");
  return Status::not_found("the input record does not hold item " + std::to_string(index));
}

std::string job_record_name(std::string_view job_id) { return std::string(kJobPrefix) + std::string(job_id); }

std::string input_record_name(std::string_view job_id, std::uint32_t pack) {
  char digits[16];
  std::snprintf(digits, sizeof digits, "%05u", pack);
  return std::string(kInputPrefix) + std::string(job_id) + "/" + digits;
}

std::string item_path(const JobSettings& settings, std::int32_t index) {
  return settings.in_batch ? "documents[" + std::to_string(index) + "]" : std::string();
}

}  // namespace quire
