#include "ingest/index/embedding_record.h"

#include <cstring>

#include "base/index.h"

namespace quire {
namespace {

constexpr std::uint32_t kMagic = 0x31424551;  // "QEB1"
constexpr std::size_t kHeaderBytes = 4 + 32 + 4 + 4;

void put_u32(std::string& out, std::uint32_t v) {
  for (int i = 0; i < 4; ++i) out.push_back(static_cast<char>(v >> (8 * i)));
}
std::uint32_t u32_at(std::string_view bytes, std::size_t first) {
  std::uint32_t v = 0;
  for (int i = 0; i < 4; ++i)
    v |= static_cast<std::uint32_t>(static_cast<unsigned char>(bytes[first + at(i)])) << (8 * i);
  return v;
}

}  // namespace

std::string encode_embeddings(const EmbeddingRecord& record) {
  std::string out;
  out.reserve(kHeaderBytes + 2 * record.values.size());
  put_u32(out, kMagic);
  out.append(reinterpret_cast<const char*>(record.made_of.bytes.data()),
             record.made_of.bytes.size());
  put_u32(out, record.dimension);
  put_u32(out, static_cast<std::uint32_t>(record.num_chunks()));
  for (const std::uint16_t v : record.values) {
    out.push_back(static_cast<char>(v));
    out.push_back(static_cast<char>(v >> 8));
  }
  return out;
}

Result<EmbeddingRecord> decode_embeddings(std::string_view bytes) {
  if (bytes.size() < kHeaderBytes) return Status::corruption("a record of embeddings is cut short");
  if (u32_at(bytes, 0) != kMagic) return Status::corruption("not a record of embeddings");
  EmbeddingRecord record;
  std::memcpy(record.made_of.bytes.data(), bytes.data() + 4, record.made_of.bytes.size());
  record.dimension = u32_at(bytes, 36);
  const std::uint64_t chunks = u32_at(bytes, 40), left = bytes.size() - kHeaderBytes;
  if (record.dimension == 0 && chunks != 0)
    return Status::corruption("a record of embeddings has vectors of no length");
  // Both factors are below 2^32, so their product does not overflow.
  if (left % 2 != 0 || left / 2 != chunks * record.dimension)
    return Status::corruption("a record of embeddings has the wrong length");
  record.values.resize(left / 2);
  for (std::size_t i = 0; i < record.values.size(); ++i) {
    const auto low = static_cast<unsigned char>(bytes[kHeaderBytes + 2 * i]),
               high = static_cast<unsigned char>(bytes[kHeaderBytes + 2 * i + 1]);
    record.values[i] = static_cast<std::uint16_t>(low | high << 8);
  }
  return record;
}

std::string embedding_record_name(std::string_view ns, std::string_view id) {
  Sha256 hash;
  hash.update_field("quire-embeddings-of").update_field(ns).update_field(id);
  return "embeddings/" + hash.finish().hex();
}

std::string embedding_lists_name(std::string_view ns) {
  return "embedding-lists/" + Sha256().update_field(ns).finish().hex();
}

Status erase_embeddings(Store& store, std::string_view ns, std::string_view id) {
  const std::string name = embedding_record_name(ns, id);
  const auto there = store.get_meta(name);
  if (there.code() == Code::kNotFound) return {};
  return store.delete_meta(name);
}

}  // namespace quire
