#include "engine/draft/draft_documents.h"

#include <algorithm>
#include <vector>

#include "base/index.h"
#include "base/log.h"
#include "engine/prefill/context_kv.h"
#include "engine/record/fingerprint.h"

namespace quire {
namespace {

SegmentLayout without_sketches(const KvLayout& layout) {
  SegmentLayout out = layout.segment();
  out.num_sketches = 0;
  return out;
}

/// Rows of one stored block that are placed.
struct BlockPart {
  std::int32_t block = 0;
  std::int64_t begin = 0, end = 0;  ///< within the block
  std::size_t values = 0;           ///< index of its first value in read_parts()
};

std::vector<BlockPart> parts_of(std::span<const RowRange> kept, const KvLayout& layout) {
  std::vector<BlockPart> parts;
  for (const RowRange& s : kept) {
    for (std::int64_t from = s.begin; from < s.end;) {
      const auto block = static_cast<std::int32_t>(from / layout.block_tokens());
      const std::int64_t first = layout.first_token(block),
                         to = std::min(s.end, first + layout.tokens_in(block));
      const bool again = !parts.empty() && parts.back().block == block;
      const std::size_t values = parts.empty()
                                     ? 0
                                     : parts.back().values + (again ? 0 : at(layout.num_groups()));
      parts.push_back({block, from - first, to - first, values});
      from = to;
    }
  }
  return parts;
}

/// Reads the values that hold the parts, all groups of one block after another.
Result<std::vector<PinnedBytes>> read_parts(Store& store, const SegmentHandle& segment,
                                            const KvLayout& layout,
                                            std::span<const BlockPart> parts) {
  std::vector<PinnedBytes> values;
  for (const BlockPart& part : parts) {
    if (part.values < values.size()) continue;
    for (std::int32_t g = 0; g < layout.num_groups(); ++g) {
      QUIRE_ASSIGN_OR_RETURN(PinnedBytes value,
                             store.read_value(segment, static_cast<std::uint32_t>(part.block),
                                              static_cast<std::uint32_t>(g)));
      if (count_of(value) != layout.value_bytes(part.block, g))
        return Status::corruption(
            "a value of the draft's KV has another length than its layout says");
      values.push_back(std::move(value));
    }
  }
  return values;
}

/// Returns a view of rows [begin, end) of the block.
RawKvView rows_of(RawKvView view, const BlockPart& part) {
  view.data = static_cast<const std::byte*>(view.data) + part.begin * view.row_stride;
  view.num_rows = part.end - part.begin;
  return view;
}

}  // namespace

DraftDocuments::DraftDocuments(Store& store, Model& model, const Tokenizer& tokenizer,
                               PagePool& pool, std::int32_t chunk_tokens)
    : store_(store), rope_(model.rope()) {
  const ModelConfig& config = model.config();
  EngineFacts& facts = core_.facts;
  facts.shape = {config.num_layers, config.num_kv_heads, config.head_dim, model.options().kv_dtype};
  facts.num_heads = config.num_heads;
  facts.vocab_size = config.vocab_size;
  facts.window = rope_.max_positions();
  if (tokenizer.add_bos() && tokenizer.bos_id()) facts.ingest_prefix = {*tokenizer.bos_id()};
  facts.names = ContextNames(
      kv_fingerprint("quire-draft-kv", model, tokenizer, facts.ingest_prefix));
  fingerprint_text_ = "d-" + facts.names.fingerprint().hex().substr(0, 8);
  core_.model = &model;
  core_.pool = &pool;
  core_.meter = &meter_;
  core_.chunk_tokens = chunk_tokens;
}

std::int64_t DraftDocuments::bytes_per_token() const {
  return kv_layout(core_.facts, 1).total_bytes();
}

Result<SegmentHandle> DraftDocuments::keep(std::span<const std::int32_t> token_ids,
                                           const Owner& owner,
                                           const std::function<Status()>& between) {
  const auto tokens = static_cast<std::int64_t>(token_ids.size() +
                                                core_.facts.ingest_prefix.size());
  if (token_ids.empty() || tokens > core_.facts.window) {
    return Status::invalid("text", "the context has " + std::to_string(tokens) +
                                       " tokens for the draft, whose window holds " +
                                       std::to_string(core_.facts.window));
  }
  const ContextKey key = core_.facts.names.context_key(token_ids, owner.tenant, owner.salt_digest);
  const auto found = [&]() -> std::optional<SegmentHandle> {
    auto segment = store_.peek_segment(key);
    return segment && (*segment)->layout ==
                          without_sketches(kv_layout(core_.facts, count_of(token_ids)))
               ? segment
               : std::nullopt;
  };
  if (auto segment = found()) return std::move(*segment);
  Result<SegmentHandle> written = write(key, token_ids, owner.tenant, between);
  if (written.ok() || written.code() != Code::kAlreadyExists) return written;
  if (auto segment = found()) return std::move(*segment);
  return written;
}

Result<SegmentHandle> DraftDocuments::write(const ContextKey& key,
                                            std::span<const std::int32_t> token_ids,
                                            const std::string& tenant,
                                            const std::function<Status()>& between) {
  ContextPrefill prefill(core_, {token_ids, {}}, PrefillRecords::kNone);
  while (!prefill.done()) {
    QUIRE_RETURN_IF_ERROR(between());
    QUIRE_RETURN_IF_ERROR(prefill.step());
  }
  const auto kv = prefill.take();
  const KvLayout& layout = kv->layout;
  QUIRE_ASSIGN_OR_RETURN(
      auto writer, store_.begin_segment(key, without_sketches(layout),
                                        static_cast<std::uint64_t>(layout.total_bytes()), tenant,
                                        fingerprint_text_));
  for (std::int32_t b = 0; b < layout.num_blocks(); ++b) {
    for (std::int32_t g = 0; g < layout.num_groups(); ++g) {
      QUIRE_RETURN_IF_ERROR(writer->take_value(static_cast<std::uint32_t>(b),
                                               static_cast<std::uint32_t>(g),
                                               kv->values[at(b * layout.num_groups() + g)]));
    }
  }
  return writer->finish();
}

bool DraftDocuments::place(std::span<const std::int32_t> token_ids, std::span<const RowRange> kept,
                           const Owner& owner, std::span<const std::int32_t> positions,
                           WorkingCache& cache) {
  const KvLayout layout = kv_layout(core_.facts, count_of(token_ids));
  const auto segment = store_.find_segment(
      core_.facts.names.context_key(token_ids, owner.tenant, owner.salt_digest));
  if (!segment || (*segment)->layout != without_sketches(layout)) return false;
  const std::vector<BlockPart> parts = parts_of(kept, layout);
  const auto values = read_parts(store_, *segment, layout, parts);
  if (!values.ok()) {
    log_warning("the draft's KV of a document is not readable; it reads the tokens",
                {{"reason", values.status().to_string()}});
    return false;
  }
  const std::int64_t before = cache.num_rows(0);
  for (std::int32_t layer = 0; layer < layout.shape().num_layers; ++layer) {
    const auto first_row = cache.add_rows(layer, positions);
    Status status = first_row.status();
    std::int64_t row = status.ok() ? *first_row : 0;
    for (std::size_t p = 0; p < parts.size() && status.ok(); ++p) {
      const PinnedBytes& value = (*values)[parts[p].values + at(layout.group_of(layer))];
      status = cache.place(
          layer, rope_, rows_of(layout.view(value.bytes(), parts[p].block, layer), parts[p]), row);
      row += parts[p].end - parts[p].begin;
    }
    if (status.ok()) continue;
    log_warning("the draft's KV of a document could not be placed",
                {{"reason", status.to_string()}});
    cache.truncate_all(before);
    return false;
  }
  return true;
}

}  // namespace quire
