#include "ingest/prepared_text.h"

#include <algorithm>
#include <charconv>

#include "base/index.h"
#include "base/sha256.h"
#include "base/system/free_memory.h"
#include "ingest/names.h"

namespace quire {
namespace {

constexpr std::string_view kKvSetting = " kv=";

/// Returns the line of settings, without the title behind it.
std::string_view settings_line(const DocumentManifest& manifest) {
  return std::string_view(manifest.chunking).substr(0, manifest.chunking.find('\n'));
}

/// Reads the number behind a name of the line. Returns false where there is none.
bool read_number(std::string_view line, std::string_view name, std::int32_t& out) {
  const std::size_t at = line.find(name);
  if (at == std::string_view::npos) return false;
  const std::string_view text = line.substr(at + name.size());
  return std::from_chars(text.data(), text.data() + text.size(), out).ec == std::errc();
}

}  // namespace

PreparedText prepare_text(DocumentInput input) {
  PreparedText out;
  if (input.text) {
    out.text = std::move(*input.text);
    return out;
  }
  if (!input.chunks) return out;
  for (const std::string& chunk : *input.chunks) {
    if (!out.given.empty()) out.text += kBetweenChunks;
    out.given.push_back({out.text.size(), out.text.size() + chunk.size()});
    out.text += chunk;
  }
  return out;
}

std::string settings_text(const ChunkingOptions& options, bool given_chunks, std::string_view title,
                          std::span<const TextMark> marks, KvPolicy kv) {
  std::string line = given_chunks ? "given" + describe_context(options) : describe(options);
  if (!marks.empty()) {
    Sha256 hash;
    for (const TextMark& mark : marks)
      hash.update_u64(mark.offset).update_u64(mark.page).update_field(mark.heading);
    line += " marks=" + hash.finish().hex().substr(0, 16);
  }
  if (kv != KvPolicy::kEager) line.append(kKvSetting).append(kv_policy_name(kv));
  return line + "\n" + std::string(title);
}

KvPolicy kv_policy(const DocumentManifest& manifest) {
  // It is the last setting of the line.
  const std::string_view line = settings_line(manifest);
  const std::size_t at = line.rfind(kKvSetting);
  if (at == std::string_view::npos) return KvPolicy::kEager;
  return parse_kv_policy(line.substr(at + kKvSetting.size())).value_or(KvPolicy::kEager);
}

bool may_be_seen(const DocumentManifest& manifest) {
  return kv_policy(manifest) != KvPolicy::kTextOnly;
}

std::optional<ChunkingOptions> token_chunking(const DocumentManifest& manifest) {
  const std::string_view line = settings_line(manifest);
  if (!line.starts_with(chunk_strategy_name(ChunkStrategy::kTokens))) return std::nullopt;
  ChunkingOptions out;
  if (!read_number(line, " max=", out.max_tokens) ||
      !read_number(line, " overlap=", out.overlap_tokens))
    return std::nullopt;
  out.context_tokens = 0;
  (void)read_number(line, " context=", out.context_tokens);
  set_what_is_seen(manifest, out);
  return out;
}

void set_what_is_seen(const DocumentManifest& manifest, ChunkingOptions& options) {
  const std::string_view line = settings_line(manifest);
  std::int32_t lead_in = 0;
  options.related_tokens = 0;
  (void)read_number(line, " related=", options.related_tokens);
  options.lead_in = read_number(line, " lead_in=", lead_in) && lead_in == 1;
}

std::string_view header_title(const DocumentManifest& manifest) {
  const std::size_t line = manifest.chunking.find('\n');
  return line == std::string::npos ? std::string_view(manifest.title)
                                   : std::string_view(manifest.chunking).substr(line + 1);
}

ContextKey key_of(const Engine& engine, const IngestOptions& options,
                  const DocumentManifest& manifest, std::size_t chunk) {
  return engine.names().context_key(manifest.chunks[chunk].token_ids, options.tenant(manifest.ns),
                                    to_bytes(manifest.salt_digest), left_context(manifest, chunk));
}

bool has_keys_of(const Engine& engine, const IngestOptions& options,
                 const DocumentManifest& manifest) {
  return manifest.chunks.empty() || manifest.chunks[0].key == key_of(engine, options, manifest, 0);
}

bool has_same_chunks(const DocumentManifest& a, const DocumentManifest& b) {
  return a.content_hash == b.content_hash && a.chunking == b.chunking &&
         a.salt_digest == b.salt_digest && a.fingerprint == b.fingerprint;
}

bool is_unchanged(const DocumentManifest& before, const DocumentManifest& after) {
  return before.version == after.version && before.created_ms == after.created_ms &&
         has_same_chunks(before, after);
}

ChunkLimits chunk_limits(const Engine& engine, const IngestOptions& options) {
  return {engine.info().max_model_len - 1, options.max_document_tokens};
}

std::uint64_t count_blocks(const DocumentManifest& manifest) {
  std::uint64_t n = 0;
  for (const DocumentChunk& c : manifest.chunks) {
    if (c.block_tokens > 0) n += (c.num_tokens + c.block_tokens - 1) / c.block_tokens;
  }
  return n;
}

Result<std::vector<Chunk>> retokenise(const Engine& engine, const DocumentManifest& manifest,
                                      std::string_view text, const ChunkLimits& limits) {
  std::vector<TextRange> ranges;
  for (const DocumentChunk& c : manifest.chunks) {
    if (c.byte_begin > c.byte_end || c.byte_end > text.size())
      return Status::corruption("chunks of " + manifest.id + " reach past its text");
    ranges.push_back({to_size(c.byte_begin), to_size(c.byte_end)});
  }
  QUIRE_ASSIGN_OR_RETURN(auto chunks,
                         chunk_given(engine.tokenizer(), engine.prompt_format_of(manifest.ns),
                                     header_title(manifest), text, ranges, limits));
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    // The same chunks may have more tokens for this model than its window holds.
    std::int64_t tokens = count_of(chunks[i].token_ids);
    while (chunks[i].left_chunks < manifest.chunks[i].left_chunks) {
      tokens += count_of(chunks[i - chunks[i].left_chunks - 1].token_ids);
      if (tokens > limits.window_tokens) break;
      ++chunks[i].left_chunks;
    }
  }
  return chunks;
}

Result<std::vector<Chunk>> cut(const Engine& engine, std::string_view ns, std::string_view title,
                               const PreparedText& prepared, const ChunkingOptions& options,
                               const ChunkLimits& limits) {
  const PromptFormat& format = engine.prompt_format_of(ns);
  QUIRE_ASSIGN_OR_RETURN(
      auto chunks,
      prepared.given.empty()
          ? chunk_text(engine.tokenizer(), format, title, prepared.text, options, limits)
          : chunk_given(engine.tokenizer(), format, title, prepared.text, prepared.given, limits));
  set_left_context(chunks, std::min<std::int64_t>(options.context_tokens, limits.window_tokens));
  constexpr std::size_t kLargeText = 1 << 20;  // some tokenizers need 200 times this
  if (prepared.text.size() > kLargeText) return_free_memory();
  return chunks;
}

}  // namespace quire
