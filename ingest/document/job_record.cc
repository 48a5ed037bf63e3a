#include "ingest/document/job_record.h"

#include <cstdio>
#include <cstring>

#include "cachestore/format/byte_io.h"

namespace quire {
namespace {

constexpr std::uint32_t kOldJobMagic = 0x314a4251;      // "QBJ1", before left contexts
constexpr std::uint32_t kPlainJobMagic = 0x324a4251;    // "QBJ2", before the policy of KV
constexpr std::uint32_t kAloneJobMagic = 0x334a4251;    // "QBJ3", before texts in front
constexpr std::uint32_t kJobMagic = 0x344a4251;         // "QBJ4"
constexpr std::uint32_t kOldInputMagic = 0x31494251;    // "QBI1", with the texts
constexpr std::uint32_t kPlainInputMagic = 0x32494251;  // "QBI2", before marks
constexpr std::uint32_t kInputMagic = 0x33494251;       // "QBI3"

/// Bits of the byte about the lead-in.
constexpr unsigned kLeadIn = 1, kByDefault = 2;

void put_settings(ByteWriter& w, const JobSettings& s) {
  w.number(s.if_exists);
  w.number(s.chunking.strategy);
  w.number(s.chunking.max_tokens);
  w.number(s.chunking.overlap_tokens);
  w.text32(s.chunking.separator);
  w.optional(s.ttl_seconds, [&](std::uint64_t v) { w.number(v); });
  w.number(s.ttl_anchor);
  w.flag(s.pinned);
  w.text32(s.tier);
  w.text32({reinterpret_cast<const char*>(s.salt_digest.bytes.data()), s.salt_digest.bytes.size()});
  w.optional(s.if_match, [&](const std::string& v) { w.text32(v); });
  w.flag(s.if_none_match_any);
  w.flag(s.in_batch);
  w.number(s.chunking.context_tokens);
  w.number(s.kv);
  w.number(s.chunking.related_tokens);
  w.number(static_cast<std::uint8_t>((s.chunking.lead_in.value_or(false) ? kLeadIn : 0) |
                                     (s.lead_in_by_default ? kByDefault : 0)));
}

JobSettings get_settings(ByteReader& r, std::uint32_t magic) {
  JobSettings s;
  s.if_exists = r.choice(IfExists::kError);
  s.chunking.strategy = r.choice(ChunkStrategy::kNone);
  s.chunking.max_tokens = r.number<std::int32_t>();
  s.chunking.overlap_tokens = r.number<std::int32_t>();
  s.chunking.separator = r.text32();
  if (r.flag()) s.ttl_seconds = r.number<std::uint64_t>();
  s.ttl_anchor = r.choice(TtlAnchor::kLastUsed);
  s.pinned = r.flag();
  s.tier = r.text32();
  const std::string_view digest = r.view32();
  if (digest.size() == s.salt_digest.bytes.size()) {
    std::memcpy(s.salt_digest.bytes.data(), digest.data(), digest.size());
  } else {
    r.fail();
  }
  if (r.flag()) s.if_match = r.text32();
  s.if_none_match_any = r.flag();
  s.in_batch = r.flag();
  s.chunking.context_tokens = magic == kOldJobMagic ? 0 : r.number<std::int32_t>();
  s.chunking.lead_in = false;
  const bool plain = magic == kOldJobMagic || magic == kPlainJobMagic;
  if (!plain) s.kv = r.choice(KvPolicy::kTextOnly);
  if (magic == kJobMagic) {
    s.chunking.related_tokens = r.number<std::int32_t>();
    const auto bits = r.number<std::uint8_t>();
    if ((bits & ~(kLeadIn | kByDefault)) != 0) r.fail();
    s.chunking.lead_in = (bits & kLeadIn) != 0;
    s.lead_in_by_default = (bits & kByDefault) != 0;
  }
  return s;
}

void put_item(ByteWriter& w, const ItemRecord& item) {
  w.number(item.view.index);
  w.text32(item.view.id);
  w.number(item.view.result);
  w.number(item.view.status);
  w.number(item.view.tokens);
  w.number(item.view.blocks);
  w.optional(item.view.error, [&](const ItemError& e) {
    w.text32(e.code);
    w.text32(e.message);
    w.text32(e.param);
  });
  w.text32(item.content_hash);
  w.number(item.input_bytes);
  w.number(item.pack);
  w.flag(item.given_id);
  w.number(item.written_tokens);
  w.number(item.deduplicated_tokens);
}

ItemRecord get_item(ByteReader& r) {
  ItemRecord item;
  item.view.index = r.number<std::int32_t>();
  item.view.id = r.text32();
  item.view.result = r.choice(ItemResult::kWarmed);
  item.view.status = r.choice(DocumentStatus::kDeleting);
  item.view.tokens = r.number<std::uint64_t>();
  item.view.blocks = r.number<std::uint64_t>();
  if (r.flag()) {
    ItemError e;
    e.code = r.text32();
    e.message = r.text32();
    e.param = r.text32();
    item.view.error = std::move(e);
  }
  item.content_hash = r.text32();
  item.input_bytes = r.number<std::uint64_t>();
  item.pack = r.number<std::uint32_t>();
  item.given_id = r.flag();
  item.written_tokens = r.number<std::uint64_t>();
  item.deduplicated_tokens = r.number<std::uint64_t>();
  return item;
}

}  // namespace

std::string encode_job(const JobRecord& job) {
  ByteWriter w;
  w.number(kJobMagic);
  w.text32(job.id);
  w.text32(job.ns);
  w.number(job.type);
  w.number(job.status);
  w.number(job.created_ms);
  w.number(job.started_ms);
  w.number(job.finished_ms);
  w.flag(job.cancelled);
  w.number(job.num_packs);
  put_settings(w, job.settings);
  w.number(static_cast<std::uint32_t>(job.items.size()));
  for (const ItemRecord& item : job.items) put_item(w, item);
  return w.take();
}

Result<JobRecord> decode_job(std::string_view bytes) {
  ByteReader r(bytes);
  const auto magic = r.number<std::uint32_t>();
  if (magic != kJobMagic && magic != kAloneJobMagic && magic != kPlainJobMagic &&
      magic != kOldJobMagic)
    return Status::corruption("a job record does not begin with this version's mark");
  JobRecord job;
  job.id = r.text32();
  job.ns = r.text32();
  job.type = r.choice(JobType::kWarm);
  job.status = r.choice(JobStatus::kCancelled);
  job.created_ms = r.number<std::int64_t>();
  job.started_ms = r.number<std::int64_t>();
  job.finished_ms = r.number<std::int64_t>();
  job.cancelled = r.flag();
  job.num_packs = r.number<std::uint32_t>();
  job.settings = get_settings(r, magic);
  const std::uint32_t n = r.count(48);
  job.items.reserve(n);
  for (std::uint32_t i = 0; i < n && r.ok(); ++i) job.items.push_back(get_item(r));
  if (!r.ok() || !r.at_end() || job.id.empty())
    return Status::corruption("a job record is cut short or damaged");
  return job;
}

std::string encode_inputs(const InputPack& pack) {
  ByteWriter w;
  w.number(kInputMagic);
  w.number(static_cast<std::uint32_t>(pack.size()));
  for (const auto& [index, input] : pack) {
    ByteWriter one;
    one.optional(input->id, [&](const std::string& v) { one.text32(v); });
    one.text32(input->title);
    one.number(document_text_bytes(*input));
    one.optional(input->chunks, [&](const std::vector<std::string>& v) {
      one.number(static_cast<std::uint32_t>(v.size()));
      for (const std::string& c : v) one.number(static_cast<std::uint32_t>(c.size()));
    });
    one.text32(input->metadata_json);
    one.number(static_cast<std::uint32_t>(input->marks.size()));
    for (const TextMark& mark : input->marks) {
      one.number(mark.offset);
      one.number(mark.page);
      one.text32(mark.heading);
    }
    w.number(index);
    w.text32(one.take());
  }
  return w.take();
}

Result<SavedInput> decode_input(std::string_view bytes, std::int32_t index) {
  ByteReader r(bytes);
  const auto magic = r.number<std::uint32_t>();
  if (magic != kInputMagic && magic != kPlainInputMagic && magic != kOldInputMagic)
    return Status::corruption("an input record does not begin with this version's mark");
  const std::uint32_t n = r.count(8);
  for (std::uint32_t i = 0; i < n && r.ok(); ++i) {
    const bool wanted = r.number<std::int32_t>() == index;
    const std::string_view body = r.view32();
    if (!r.ok() || !wanted) continue;
    ByteReader one(body);
    SavedInput saved;
    DocumentInput& input = saved.input;
    if (one.flag()) input.id = one.text32();
    input.title = one.text32();
    if (magic == kOldInputMagic) {
      if (one.flag()) input.text = one.text32();
      if (one.flag()) {
        const std::uint32_t chunks = one.count(4);
        input.chunks.emplace();
        for (std::uint32_t c = 0; c < chunks && one.ok(); ++c)
          input.chunks->push_back(one.text32());
      }
      saved.text_bytes = document_text_bytes(input);
    } else {
      saved.text_apart = true;
      saved.text_bytes = one.number<std::uint64_t>();
      if (one.flag()) {
        const std::uint32_t chunks = one.count(4);
        saved.chunk_bytes.emplace();
        for (std::uint32_t c = 0; c < chunks && one.ok(); ++c)
          saved.chunk_bytes->push_back(one.number<std::uint32_t>());
      }
    }
    input.metadata_json = one.text32();
    if (magic == kInputMagic) {
      input.marks.resize(one.count(16));
      for (TextMark& mark : input.marks) {
        mark.offset = one.number<std::uint64_t>();
        mark.page = one.number<std::uint32_t>();
        mark.heading = one.text32();
      }
    }
    if (!one.ok() || !one.at_end()) return Status::corruption("an input record is damaged");
    return saved;
  }
  if (!r.ok()) return Status::corruption("an input record is cut short");
  return Status::not_found("the input record does not hold item " + std::to_string(index));
}

Result<DocumentInput> attach_text(SavedInput saved, std::string text) {
  if (!saved.text_apart) return std::move(saved.input);
  if (text.size() != saved.text_bytes)
    return Status::corruption("a saved text has another length than its input record says");
  if (!saved.chunk_bytes) {
    saved.input.text = std::move(text);
    return std::move(saved.input);
  }
  saved.input.chunks = cut_document_text(text, *saved.chunk_bytes);
  if (!saved.input.chunks)
    return Status::corruption("a saved text has other chunks than its input record says");
  return std::move(saved.input);
}

std::string job_record_name(std::string_view job_id) {
  return std::string(kJobPrefix) + std::string(job_id);
}

std::string input_record_name(std::string_view job_id, std::uint32_t pack) {
  char digits[16];
  std::snprintf(digits, sizeof digits, "%05u", pack);
  return std::string(kInputPrefix) + std::string(job_id) + "/" + digits;
}

std::string input_text_name(std::string_view job_id, std::int32_t index) {
  return std::string(job_id) + "/" + std::to_string(index);
}

std::string item_path(const JobSettings& settings, std::int32_t index) {
  return settings.in_batch ? "documents[" + std::to_string(index) + "]" : std::string();
}

}  // namespace quire
