// Parses what the document service reads from disk or as free text: job records, saved inputs,
// metadata, UTF-8. It never reads past the end, and accepted records encode to the same bytes.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "cachestore/format/metadata.h"
#include "ingest/document/chunker.h"
#include "ingest/document/job_record.h"
#include "ingest/document/metadata.h"
#include "ingest/document/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quire;
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 4) {
    case 0:
      if (const auto job = decode_job(bytes); job.ok()) {
        const auto again = decode_job(encode_job(*job));
        if (!again.ok() || encode_job(*again) != encode_job(*job)) std::abort();
      }
      break;
    case 1:
      if (auto saved = decode_input(bytes, data[0] / 4); saved.ok()) {
        // A text of the right length may still have other chunks.
        std::string text(saved->text_bytes < 4096 ? saved->text_bytes : 0, 'x');
        (void)attach_text(std::move(*saved), std::move(text));
      }
      break;
    case 2: {
      const std::size_t half = bytes.size() / 2;
      const auto merged = merge_metadata(bytes.substr(0, half), bytes.substr(half), 1 << 14);
      if (merged.ok() && !normalize_metadata(*merged, 1 << 16).ok()) std::abort();
      (void)metadata_matches(bytes, {{"a", "1"}});
      DocumentManifest document;
      document.metadata_json = bytes;
      if (document_terms(document).empty()) std::abort();  // its status is one
      MetadataCondition condition(std::string(bytes.substr(0, half)),
                                  std::string(bytes.substr(half)));
      (void)filter_terms(condition);
      condition.none_of.swap(condition.any_of);
      condition.at_least = bytes.substr(half);
      (void)metadata_matches(bytes, {condition});
      break;
    }
    default:
      if (const auto bad = find_invalid_utf8(bytes)) {
        if (*bad >= bytes.size() || find_invalid_utf8(bytes.substr(0, *bad))) std::abort();
      }
      if (count_code_points(bytes) > bytes.size() ||
          code_point_floor(bytes, bytes.size() / 2) > bytes.size())
        std::abort();
      (void)is_blank(bytes);
      (void)markdown_marks(bytes);
      if (CodePointSeeker seeker(bytes); seeker.at(bytes.size() + 1)) std::abort();
  }
  return 0;
}
