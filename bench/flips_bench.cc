// Flips bits of everything that the service stores, one damage at a time, and reads it: each
// reading must be refused or give what was written. Prints {"settings": ..., "rows": [...]}; exit
// code 1 if anything else was read.
//   quire_flips_bench [--flips N] [--seed N] [--quick]
#include <fcntl.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.h"
#include "cachestore/disk/write_ledger.h"
#include "cachestore/format/placement.h"
#include "cachestore/format/record.h"
#include "cachestore/pack/pack.h"
#include "cachestore/remote/remote_record.h"
#include "engine/cache/prompt_file.h"

namespace {

using namespace quire;  // NOLINT
namespace fs = std::filesystem;
namespace json = boost::json;

enum class Reading { kRefused, kRight, kWrong };

/// A kind of stored bytes, and what reading them gives.
struct Kind {
  std::string name, bytes;
  std::function<Reading(const std::string&)> read;
};

std::string random_text(std::size_t bytes, std::mt19937_64& rng) {
  std::string out(bytes, ' ');
  for (char& c : out) c = static_cast<char>('a' + rng() % 26);
  return out;
}

std::span<const std::byte> bytes_of(std::string_view s) {
  return std::as_bytes(std::span(s.data(), s.size()));
}

/// A record that decodes to something which must encode to the bytes that were written.
template <class Decode, class Encode>
Kind record_kind(std::string name, std::string bytes, Decode decode, Encode encode) {
  auto read = [bytes, decode, encode](const std::string& damaged) {
    const auto decoded = decode(std::string_view(damaged));
    if (!decoded.ok()) return Reading::kRefused;
    return encode(*decoded) == bytes ? Reading::kRight : Reading::kWrong;
  };
  return {std::move(name), std::move(bytes), std::move(read)};
}

DocumentManifest manifest(std::mt19937_64& rng) {
  DocumentManifest m;
  m.ns = "default";
  m.id = "report-2026";
  m.title = "A report";
  m.metadata_json = R"({"year":2026,"kind":"report"})";
  m.text_bytes = 4000;
  m.expires_at_ms = 1'800'000'000'000;
  m.fingerprint = "m-0123456789";
  for (int chunk = 0; chunk < 2; ++chunk) {
    DocumentChunk ref;
    ref.key = sha256("chunk " + std::to_string(chunk));
    for (int i = 0; i < 400; ++i) ref.token_ids.push_back(static_cast<std::int32_t>(rng() % 50000));
    ref.num_tokens = 400;
    ref.block_tokens = 16;
    ref.byte_begin = static_cast<std::uint64_t>(2000 * chunk);
    ref.byte_end = ref.byte_begin + 2000;
    m.chunks.push_back(std::move(ref));
  }
  return m;
}

Kind tokens_kind(const DocumentManifest& m) {
  const std::string head = record::encode_head(m);
  std::string bytes = record::encode_tokens(m);
  auto read = [bytes, head](const std::string& damaged) {
    auto decoded = record::decode_head(head);
    if (!record::decode_tokens(damaged, &*decoded).ok()) return Reading::kRefused;
    return record::encode_tokens(*decoded) == bytes ? Reading::kRight : Reading::kWrong;
  };
  return {"tokens of a document", std::move(bytes), std::move(read)};
}

Kind value_kind(std::string name, record::Part part, std::size_t payload_bytes,
                std::mt19937_64& rng) {
  const record::ValueName value{77, part, 3, part == record::Part::kValue ? 2u : 0u};
  const std::string payload = random_text(payload_bytes, rng);
  std::string bytes(record::kValueHeaderBytes, '\0');
  record::write_value_header(value, bytes_of(payload), reinterpret_cast<std::byte*>(bytes.data()));
  bytes += payload;
  auto read = [payload, value](const std::string& damaged) {
    if (!record::check_value(value, bytes_of(damaged)).ok()) return Reading::kRefused;
    return std::string_view(damaged).substr(record::kValueHeaderBytes) == payload ? Reading::kRight
                                                                                  : Reading::kWrong;
  };
  return {std::move(name), std::move(bytes), std::move(read)};
}

/// Reads a pack and writes what was read; empty: it was refused.
std::string copy_of_pack(std::string_view pack) {
  std::size_t at = 0;
  PackReader reader([&](std::span<char> to) -> Result<std::size_t> {
    const std::size_t n = std::min(to.size(), pack.size() - at);
    std::memcpy(to.data(), pack.data() + at, n);
    at += n;
    return n;
  });
  std::string out;
  PackWriter writer([&](std::string_view piece) {
    out += piece;
    return true;
  });
  for (;;) {
    auto next = reader.next();
    if (!next.ok()) return {};
    if (!*next) return out;
    Status s;
    if (const auto* header = std::get_if<PackHeader>(&**next)) s = writer.header(*header);
    if (const auto* d = std::get_if<PackDocument>(&**next))
      s = writer.document(d->manifest, d->text);
    if (const auto* segment = std::get_if<PackSegment>(&**next)) s = writer.segment(*segment);
    if (const auto* v = std::get_if<PackValue>(&**next))
      s = writer.value(v->part, v->block, v->group, bytes_of(v->bytes));
    if (std::holds_alternative<PackEnd>(**next)) s = writer.end();
    if (!s.ok()) return {};
  }
}

Kind pack_kind(const DocumentManifest& m, std::mt19937_64& rng) {
  std::string bytes;
  PackWriter writer([&](std::string_view piece) {
    bytes += piece;
    return true;
  });
  Status s = writer.header({1'790'000'000'000, m.fingerprint, "quire"});
  if (s.ok()) s = writer.document(m, random_text(m.text_bytes, rng));
  for (const auto& chunk : m.chunks) {
    PackSegment segment{chunk.key, {2, 1, 1}, 1200, 300, m.fingerprint};
    if (s.ok()) s = writer.segment(segment);
    for (std::uint32_t block = 0; block < 2; ++block)
      if (s.ok()) s = writer.value(record::Part::kValue, block, 0, bytes_of(random_text(600, rng)));
    if (s.ok()) s = writer.value(record::Part::kSketch, 0, 0, bytes_of(random_text(300, rng)));
  }
  if (s.ok()) s = writer.end();
  if (!s.ok() || copy_of_pack(bytes) != bytes) {
    std::fprintf(stderr, "error: no pack could be written: %s\n", s.to_string().c_str());
    std::exit(2);
  }
  auto read = [bytes](const std::string& damaged) {
    const std::string copy = copy_of_pack(damaged);
    return copy.empty() ? Reading::kRefused : copy == bytes ? Reading::kRight : Reading::kWrong;
  };
  return {"pack", std::move(bytes), std::move(read)};
}

/// The file of kept prompts: any page that is read must be one that was written, in its slot.
Kind prompts_kind(const std::string& folder) {
  const std::string path = folder + "/prompts/pages";
  constexpr PageFormat kFormat{.num_kv_heads = 1, .head_dim = 16, .dtype = DType::kF16};
  constexpr std::int32_t kLayers = 2, kPages = 4;
  const PromptFile::Shape shape{
      .fingerprint = sha256(std::string_view("model")), .page = kFormat, .num_layers = kLayers};
  std::vector<PromptPage> pages;
  for (std::int32_t i = 0; i < kPages; ++i) {
    PromptPage page{
        .key = sha256("page " + std::to_string(i)), .parent = {}, .token_ids = {}, .rows = {}};
    if (i > 0) page.parent = pages.back().key;
    page.token_ids.resize(kPageTokens);
    std::iota(page.token_ids.begin(), page.token_ids.end(), 100 * i);
    page.rows.assign(static_cast<std::size_t>(kFormat.page_bytes() * kLayers),
                     static_cast<std::byte>(i + 1));
    pages.push_back(std::move(page));
  }
  {
    auto file = PromptFile::open(path, shape, 1 << 20);
    if (!file.ok()) {
      std::fprintf(stderr, "error: %s\n", file.status().to_string().c_str());
      std::exit(2);
    }
    for (std::int32_t i = 0; i < kPages; ++i) (*file)->write(i, pages[static_cast<std::size_t>(i)]);
    (*file)->flush();
  }
  std::string bytes(fs::file_size(path), '\0');
  if (std::FILE* in = std::fopen(path.c_str(), "rb")) {
    bytes.resize(std::fread(bytes.data(), 1, bytes.size(), in));
    std::fclose(in);
  }
  auto read = [path, shape, pages](const std::string& damaged) {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    const bool written = fd >= 0 && ::write(fd, damaged.data(), damaged.size()) ==
                                        static_cast<ssize_t>(damaged.size());
    if (fd >= 0) ::close(fd);
    if (!written) std::exit(2);
    auto file = PromptFile::open(path, shape, 1 << 20);
    if (!file.ok()) return Reading::kRefused;
    std::size_t right = 0;
    bool wrong = false;
    (*file)->load([&](std::int32_t slot, const PromptPage& page) {
      const auto& written_page = pages[static_cast<std::size_t>(slot) % pages.size()];
      const bool same = static_cast<std::size_t>(slot) < pages.size() &&
                        page.key == written_page.key && page.parent == written_page.parent &&
                        page.token_ids == written_page.token_ids && page.rows == written_page.rows;
      wrong = wrong || !same;
      ++right;
      return true;
    });
    return wrong ? Reading::kWrong : right < pages.size() ? Reading::kRefused : Reading::kRight;
  };
  return {"kept prompts", std::move(bytes), std::move(read)};
}

/// The count of acknowledged writes: any entry that is read must be one that was written.
Kind ledger_kind(const std::string& folder) {
  const std::string path = folder + "/LEDGER";
  {
    WriteLedger ledger;
    if (!ledger.open(path).ok()) std::exit(2);
    for (int i = 0; i < 20; ++i) {
      const auto turn = ledger.next();
      ledger.add(turn.number, 1, 1'790'000'000'000 + i);
    }
  }
  std::string bytes(fs::file_size(path), '\0');
  if (std::FILE* in = std::fopen(path.c_str(), "rb")) {
    bytes.resize(std::fread(bytes.data(), 1, bytes.size(), in));
    std::fclose(in);
  }
  const auto entries = WriteLedger::parse(bytes);
  auto read = [entries](const std::string& damaged) {
    const auto found = WriteLedger::parse(damaged);
    for (const auto& e : found) {
      const bool written = std::any_of(entries.begin(), entries.end(), [&](const auto& w) {
        return w.number == e.number && w.ms == e.ms && w.families == e.families;
      });
      if (!written) return Reading::kWrong;
    }
    return found.size() < entries.size() ? Reading::kRefused : Reading::kRight;
  };
  return {"ledger", std::move(bytes), std::move(read)};
}

std::vector<Kind> kinds(const std::string& folder, std::mt19937_64& rng) {
  const DocumentManifest m = manifest(rng);
  SegmentInfo segment;
  segment.key = m.chunks[0].key;
  segment.id = 77;
  segment.layout = {25, 3, 2};
  segment.value_bytes = 1'000'000;
  segment.tenant = "default";
  segment.fingerprint = m.fingerprint;
  Placement placement;
  placement.range = {3, 81920, 40960};
  placement.num_blocks = 4, placement.values_per_block = 2, placement.num_sketches = 1;
  placement.slots.add(4000, 8);
  placement.slots.add(900);
  RemoteRecord remote;
  remote.key = m.chunks[1].key;
  remote.fingerprint = m.fingerprint;
  remote.layout = {4, 2, 1};
  remote.sizes.add(4000, 8);
  remote.sizes.add(900);

  std::vector<Kind> out;
  out.push_back(record_kind("head of a document", record::encode_head(m), record::decode_head,
                            record::encode_head));
  out.push_back(tokens_kind(m));
  out.push_back(record_kind("text of a document", record::encode_text(random_text(4000, rng)),
                            record::decode_text, record::encode_text));
  out.push_back(record_kind("segment", record::encode_segment(segment), record::decode_segment,
                            record::encode_segment));
  out.push_back(record_kind("placement", record::encode_placement(placement),
                            record::decode_placement, record::encode_placement));
  out.push_back(record_kind("job, vectors, saved reply",
                            record::encode_opaque(random_text(3000, rng)), record::decode_opaque,
                            record::encode_opaque));
  out.push_back(value_kind("KV of a block", record::Part::kValue, 24'000, rng));
  out.push_back(value_kind("sketch", record::Part::kSketch, 3'000, rng));
  out.push_back(record_kind("record in a shared tier", encode_remote_record(remote),
                            decode_remote_record, encode_remote_record));
  out.push_back(pack_kind(m, rng));
  out.push_back(prompts_kind(folder));
  out.push_back(ledger_kind(folder));
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  long flips = 1'000'000;
  std::uint64_t seed = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (flag == "--quick") {
      flips = 60'000;
    } else if (flag == "--flips" && i + 1 < argc) {
      flips = std::atol(argv[++i]);
    } else if (flag == "--seed" && i + 1 < argc) {
      seed = static_cast<std::uint64_t>(std::atoll(argv[++i]));
    } else {
      std::fprintf(stderr, "usage: quire_flips_bench [--flips N] [--seed N] [--quick]\n");
      return 2;
    }
  }
  set_log_sink([](auto&&...) {},
               LogLevel::kError);  // each damaged file of prompts would be told of
  std::string folder = (fs::temp_directory_path() / "quire_flips_XXXXXX").string();
  if (!::mkdtemp(folder.data())) return 2;
  std::mt19937_64 rng(seed);
  json::array rows;
  long wrong_in_all = 0;
  const auto all = kinds(folder, rng);
  for (const Kind& kind : all) {
    if (kind.read(kind.bytes) != Reading::kRight) {
      std::fprintf(stderr, "error: %s cannot be read undamaged\n", kind.name.c_str());
      return 2;
    }
    long done = 0, refused = 0, right = 0, wrong = 0;
    for (const long wanted = flips / static_cast<long>(all.size()); done < wanted;) {
      std::string damaged = kind.bytes;
      // One bit mostly, as several are noticed more easily.
      const int bits = rng() % 4 == 0 ? 2 + static_cast<int>(rng() % 7) : 1;
      for (int bit = 0; bit < bits; ++bit, ++done) {
        const std::uint64_t at = rng() % (damaged.size() * 8);
        damaged[at / 8] = static_cast<char>(damaged[at / 8] ^ (1 << at % 8));
      }
      const Reading reading = kind.read(damaged);
      refused += reading == Reading::kRefused;
      right += reading == Reading::kRight;
      wrong += reading == Reading::kWrong;
    }
    wrong_in_all += wrong;
    rows.push_back(json::object{{"kind", kind.name},
                                {"bytes", kind.bytes.size()},
                                {"flips", done},
                                {"refused", refused},
                                {"read_right", right},
                                {"wrong", wrong}});
  }
  std::error_code ignored;
  fs::remove_all(folder, ignored);
  std::printf("%s\n", json::serialize(
                          json::object{{"settings", json::object{{"flips", flips}, {"seed", seed}}},
                                       {"rows", std::move(rows)}})
                          .c_str());
  return wrong_in_all > 0 ? 1 : 0;
}
