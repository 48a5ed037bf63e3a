// Decoders of stored records must refuse anything that the encoders did not write, without reading
// past the end. The fuzzer cannot guess the checksum, so each input is tried as it is and once with
// a right one. A decoded record must encode to something that decodes to the same.
#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>

#include "cachestore/disk/folder/replacement.h"
#include "cachestore/disk/folder/store_marker.h"
#include "cachestore/disk/folder/untold_losses.h"
#include "cachestore/disk/log/manifest_end.h"
#include "cachestore/disk/log/manifest_note.h"
#include "cachestore/disk/write_ledger.h"
#include "cachestore/format/placement.h"
#include "cachestore/format/record.h"

namespace {

using namespace quire;  // NOLINT

void check(bool ok) {
  if (!ok) std::abort();
}

void decode_all(std::string_view bytes) {
  if (auto head = record::decode_head(bytes); head.ok()) {
    auto again = record::decode_head(record::encode_head(*head));
    check(again.ok() && *again == *head);
    (void)head->effective_expiry_ms();
  }
  if (auto segment = record::decode_segment(bytes); segment.ok()) {
    auto again = record::decode_segment(record::encode_segment(*segment));
    check(again.ok() && again->id == segment->id && again->key == segment->key &&
          again->layout == segment->layout);
  }
  if (auto placement = record::decode_placement(bytes); placement.ok()) {
    auto again = record::decode_placement(record::encode_placement(*placement));
    check(again.ok() && *again == *placement);
    const std::uint64_t last = placement->slots.size() - 1;
    const auto slot = placement->slots.find(last);
    check(slot &&
          slot->header + record::kValueHeaderBytes + slot->payload_bytes <= placement->range.bytes);
    check(!placement->slots.find(last + 1));
  }
  if (auto text = record::decode_text(bytes); text.ok())
    check(record::decode_text(record::encode_text(*text)).value_or("x") == *text);
  if (auto opaque = record::decode_opaque(bytes); opaque.ok())
    check(record::encode_opaque(*opaque) == bytes);
  (void)record::check_envelope(bytes).ok();
  check(WriteLedger::parse(bytes).size() <= bytes.size() / 32);
  check(WriteLedger::last_in_log(bytes, 7) >= 7);
  if (const auto note = ManifestNote::parse(bytes)) check(bytes.starts_with(note->text()));
  if (const auto marker = StoreMarker::parse(bytes); marker.kind == StoreMarker::Kind::kChecked)
    check(bytes == StoreMarker::text(marker.layout));
  if (const auto replacement = Replacement::parse(bytes)) check(bytes == replacement->text());
  if (const auto note = UntoldLosses::Note::parse(bytes)) check(bytes == note->text());
  if (const auto end = torn_manifest_end(bytes)) {
    check(*end > 0 && *end < bytes.size());
    check(!torn_manifest_end(bytes.substr(0, *end)));
  }

  // Tokens need their manifest, so the input gives the counts of two chunks.
  DocumentManifest m;
  m.chunks.resize(2);
  m.chunks[0].num_tokens = bytes.size() > 13 ? static_cast<unsigned char>(bytes[13]) : 0;
  m.chunks[1].num_tokens = bytes.size() > 20 ? static_cast<unsigned char>(bytes[20]) : 0;
  if (record::decode_tokens(bytes, &m).ok())
    check(record::decode_tokens(record::encode_tokens(m), &m).ok());

  const auto stored = std::as_bytes(std::span(bytes.data(), bytes.size()));
  (void)record::check_value({1, record::Part::kValue, 2, 3}, stored).ok();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  decode_all(bytes);
  if (size < 1) return 0;
  // The first byte is the kind; the rest is the payload, in a right envelope.
  const auto kind = static_cast<std::uint8_t>(data[0] < 240 ? 1 + data[0] % 5 : 6);
  const std::string_view payload = bytes.substr(1);
  std::string record = "QR";
  record += static_cast<char>(kind);
  record += '\1';
  const std::uint64_t hash = XXH3_64bits_withSeed(payload.data(), payload.size(), kind | 1u << 8);
  for (int i = 0; i < 8; ++i) record += static_cast<char>(hash >> (8 * i));
  record += payload;
  decode_all(record);
  if (kind == 3)
    check(record::decode_text(record).value_or("") ==
          payload);  // checks that the envelope above is the real one
  return 0;
}
