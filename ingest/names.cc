#include "ingest/names.h"

#include <algorithm>
#include <random>

#include "base/index.h"
#include "cachestore/format/key.h"
#include "ingest/document/chunker.h"
#include "ingest/document/document_id.h"
#include "ingest/document/metadata.h"
#include "ingest/document/utf8.h"

namespace quire {
namespace {

bool is_alnum(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

constexpr std::size_t kMaxTitle = 4096;  // the title is part of every chunk's header
constexpr std::string_view kBase32 = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";

std::optional<ItemError> check_utf8(std::string_view text, const std::string& param) {
  const auto bad = find_invalid_utf8(text);
  if (!bad) return std::nullopt;
  return ItemError{"invalid_value", param + " is not valid UTF-8 at byte " + std::to_string(*bad),
                   param};
}

}  // namespace

Status check_namespace(std::string_view ns) {
  const auto fine = [](char c) { return is_alnum(c) || c == '.' || c == '_' || c == '-'; };
  if (ns.empty() || ns.size() > 64 || !std::all_of(ns.begin(), ns.end(), fine)) {
    return Status::invalid("namespace", "must be 1 to 64 characters of [A-Za-z0-9._-]");
  }
  return {};
}

Status check_document_id(std::string_view id) {
  if (is_document_id(id)) return {};
  return Status::invalid("id", "must be 1 to " + std::to_string(kMaxIdBytes) +
                                   " bytes of letters, digits and . _ : ~ - and begin with a "
                                   "letter or digit");
}

Status check_salt(std::string_view cache_salt) {
  if (cache_salt.empty()) return {};
  if (find_invalid_utf8(cache_salt)) return Status::invalid("cache_salt", "is not valid UTF-8");
  const auto n = count_code_points(cache_salt);
  if (n < 8 || n > 128)
    return Status::invalid("cache_salt", "must have 8 to 128 characters, not " + std::to_string(n));
  return {};
}

Status check_batch_options(const BatchOptions& options) {
  QUIRE_RETURN_IF_ERROR(validate(options.chunking));
  QUIRE_RETURN_IF_ERROR(check_salt(options.cache_salt));
  if (options.ttl_seconds &&
      (*options.ttl_seconds == 0 || *options.ttl_seconds > 100ull * 366 * 86400)) {
    return Status::invalid("ttl_seconds", "must be at least 1 and at most 100 years");
  }
  if (options.pinned && options.kv == KvPolicy::kTextOnly)
    return Status::invalid("pinned", "keeps KV, and with kv text_only there is none");
  if (!options.tier.empty() && options.tier != "dram" && options.tier != "disk") {
    return Status::invalid("tier", "must be dram or disk in this build, not " + options.tier);
  }
  return {};
}

std::optional<ItemError> check_document(DocumentInput& input, const IngestOptions& options,
                                        const std::string& path) {
  if (input.id) {
    if (const Status s = check_document_id(*input.id); !s.ok())
      return ItemError{"invalid_value", "id " + s.message(), join_path(path, "id")};
  }
  if (auto bad = check_utf8(input.title, join_path(path, "title"))) return bad;
  if (input.title.size() > kMaxTitle) {
    return ItemError{"invalid_value",
                     "title has " + std::to_string(input.title.size()) + " bytes, the limit is " +
                         std::to_string(kMaxTitle),
                     join_path(path, "title")};
  }
  if (input.text.has_value() == input.chunks.has_value()) {
    return ItemError{"invalid_value",
                     input.text ? "give either text or chunks, not both" : "give text or chunks",
                     join_path(path, "text")};
  }
  std::size_t bytes = 0;
  if (input.text) {
    bytes = input.text->size();
    if (auto bad = check_utf8(*input.text, join_path(path, "text"))) return bad;
    if (is_blank(*input.text))
      return ItemError{"empty_document", "text has no text", join_path(path, "text")};
  } else {
    if (input.chunks->empty())
      return ItemError{"empty_document", "chunks has no text", join_path(path, "chunks")};
    for (std::size_t i = 0; i < input.chunks->size(); ++i) {
      const std::string name = "chunks[" + std::to_string(i) + "]";
      const std::string& chunk = (*input.chunks)[i];
      if (auto bad = check_utf8(chunk, join_path(path, name))) return bad;
      if (is_blank(chunk))
        return ItemError{"empty_document", name + " has no text", join_path(path, name)};
      bytes += chunk.size() + 2;
    }
  }
  if (bytes > kMaxTextBytes) {
    return ItemError{"invalid_value",
                     "the text has " + std::to_string(bytes) + " bytes, the limit is " +
                         std::to_string(kMaxTextBytes),
                     join_path(path, input.text ? "text" : "chunks")};
  }
  if (const Status s = check_marks(input.marks, input.text ? input.text->size() : 0); !s.ok())
    return ItemError{"invalid_value", s.field() + " " + s.message(), join_path(path, s.field())};
  for (std::size_t i = 0; i < input.marks.size(); ++i) {
    const std::string name = "marks[" + std::to_string(i) + "].heading";
    if (auto bad = check_utf8(input.marks[i].heading, join_path(path, name))) return bad;
  }
  auto metadata = normalize_metadata(input.metadata_json, to_size(options.max_metadata_bytes));
  if (!metadata.ok())
    return ItemError{"invalid_value", metadata.status().message(), join_path(path, "metadata")};
  input.metadata_json = std::move(*metadata);
  return std::nullopt;
}

std::string content_hash(const DocumentInput& input) {
  Sha256 hash;
  hash.update_field("quire-document").update_field(input.title);
  if (input.text) {
    hash.update_field("text").update_field(*input.text);
  } else if (input.chunks) {
    hash.update_field("chunks").update_u64(input.chunks->size());
    for (const std::string& chunk : *input.chunks) hash.update_field(chunk);
  }
  return "sha256:" + hash.finish().hex();
}

std::string id_from_hash(std::string_view hash) {
  return "doc_" + std::string(hash.substr(hash.find(':') + 1, 32));
}

Digest salt_digest_of(std::string_view cache_salt) {
  if (cache_salt.empty()) return {};
  return Sha256().update_field("quire-salt").update_field(cache_salt).finish();
}

std::array<std::uint8_t, 32> to_bytes(const Digest& digest) {
  std::array<std::uint8_t, 32> out;
  std::transform(digest.bytes.begin(), digest.bytes.end(), out.begin(),
                 [](std::byte b) { return static_cast<std::uint8_t>(b); });
  return out;
}

std::string make_job_id(std::int64_t now_ms, std::string_view last) {
  std::string id = "job_";
  for (int shift = 45; shift >= 0; shift -= 5)
    id += kBase32[(static_cast<std::uint64_t>(now_ms) >> shift) & 31];
  thread_local std::mt19937_64 random{std::random_device{}()};
  for (int i = 0; i < 16; ++i) id += kBase32[random() & 31];
  if (id > last || last.size() != id.size()) return id;
  // The clock has not advanced or went back, so the id continues behind the last one: at a distance
  // that nobody else draws who has the same last one.
  id = std::string(last);
  std::uint64_t carry = (random() & ((std::uint64_t{1} << 50) - 1)) + 1;
  for (std::size_t i = id.size(); i-- > 4 && carry > 0;) {
    const std::size_t digit = kBase32.find(id[i]);
    const std::uint64_t sum = (digit == std::string_view::npos ? 0 : digit) + carry;
    id[i] = kBase32[sum & 31];
    carry = sum >> 5;
  }
  return id;
}

std::string join_path(const std::string& path, std::string_view field) {
  if (path.empty() || field.empty()) return path.empty() ? std::string(field) : path;
  return path + "." + std::string(field);
}

ItemError to_item_error(const Status& status, const std::string& param) {
  switch (status.code()) {
    case Code::kInvalidArgument:
      return {"invalid_value", status.message(), param};
    case Code::kNotFound:
      return {"document_not_found", status.message(), param};
    case Code::kAlreadyExists:
      return {"document_exists", status.message(), param};
    case Code::kFailedPrecondition:
      return {"precondition_failed", status.message(), param};
    case Code::kResourceExhausted:
      return {"cache_full", status.message(), param};
    case Code::kCorruption:
    case Code::kIo:
      return {"storage_unavailable", status.message(), param};
    case Code::kUnavailable:
      return {"loading", status.message(), param};
    case Code::kDeadlineExceeded:
      return {"deadline_exceeded", status.message(), param};
    case Code::kUnimplemented:
      return {"not_supported", status.message(), param};
    default:
      return {"internal", "internal error; the log says more", param};
  }
}

}  // namespace quire
