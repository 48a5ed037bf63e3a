#include "ingest/block_list.h"

#include <algorithm>
#include <array>
#include <string>

#include "base/index.h"
#include "ingest/document/utf8.h"
#include "ingest/names.h"
#include "ingest/prepared_text.h"

namespace quire {
namespace {

std::string block_name(const std::array<std::uint8_t, 16>& id) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string name = "b-";
  for (std::size_t i = 0; i < 6; ++i) {
    name += kHex[id[i] >> 4];
    name += kHex[id[i] & 15];
  }
  return name;
}

}  // namespace

std::uint64_t blocks_of(const DocumentChunk& c) {
  return c.block_tokens == 0 ? 0 : (c.num_tokens + c.block_tokens - 1) / c.block_tokens;
}

std::vector<BlockInfo> list_blocks(Store& store, const Engine& engine,
                                   const DocumentManifest& manifest, std::string_view text,
                                   std::string_view tenant) {
  CodePointCounter begin(text), end(text);
  std::vector<BlockInfo> out;
  for (std::size_t i = 0; i < manifest.chunks.size(); ++i) {
    const DocumentChunk& c = manifest.chunks[i];
    if (c.block_tokens == 0 || c.byte_end > text.size() || c.byte_begin > c.byte_end) continue;
    const auto names = engine.names().block_ids(c.token_ids, tenant, to_bytes(manifest.salt_digest),
                                                left_context(manifest, i));
    const auto tokens = engine.prompt_format_of(manifest.ns)
                            .document(header_title(manifest),
                                      text.substr(c.byte_begin, c.byte_end - c.byte_begin));
    const bool known = tokens.ok() && tokens->ids == c.token_ids;
    const auto segment = c.key.is_zero() ? std::nullopt : store.peek_segment(c.key);
    for (std::uint32_t b = 0; b < blocks_of(c); ++b) {
      BlockInfo info;
      info.index = static_cast<std::int32_t>(out.size());
      info.chunk = static_cast<std::int32_t>(i);
      info.token_begin = std::uint64_t{b} * c.block_tokens;
      info.token_end = std::min<std::uint64_t>(c.num_tokens, info.token_begin + c.block_tokens);
      if (b < names.size()) info.block_id = block_name(names[b]);
      if (known) {
        std::size_t first = SIZE_MAX, last = 0;
        for (std::uint64_t t = info.token_begin; t < info.token_end; ++t) {
          first = std::min<std::size_t>(first, tokens->spans[t].begin);
          last = std::max<std::size_t>(last, tokens->spans[t].end);
        }
        info.char_begin = begin.at(code_point_floor(text, c.byte_begin + first));
        info.char_end = end.at(code_point_floor(text, c.byte_begin + last));
      }
      if (segment) info.tier = store.tier_of(*segment, b, 0);
      out.push_back(std::move(info));
    }
  }
  return out;
}

}  // namespace quire
