#include "fidelity/state_file.h"

#include <array>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <optional>

#include "base/json_parse.h"
#include "base/json_reader.h"
#include "fidelity/line_source.h"

namespace quire {
namespace json = boost::json;
namespace {

constexpr std::string_view kFormat = "quire-fidelity-state-7";

/// Formats numbers as text. The JSON library's reader may be off by the last bit, and rows must be
/// read back exactly as measured.
std::string exact(double value) {
  std::array<char, 32> digits;
  return {digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr};
}

std::optional<double> from_exact(const json::value* value) {
  if (value == nullptr || !value->is_string()) return std::nullopt;
  const std::string_view text(value->get_string().data(), value->get_string().size());
  double out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return out;
}

std::string row_text(const std::string& question, const std::string& strategy,
                     const std::string& build, const Measurement& m) {
  json::object o;
  o["question"] = question;
  o["strategy"] = strategy;
  o["build"] = build;
  o["skipped"] = m.skipped;
  o["has_answers"] = m.has_answers;
  o["em"] = exact(m.em);
  o["f1"] = exact(m.f1);
  o["contains"] = exact(m.contains);
  if (m.nll) o["nll"] = exact(*m.nll);
  if (m.nll_without) o["nll_without"] = exact(*m.nll_without);
  if (m.contains_without) o["contains_without"] = exact(*m.contains_without);
  if (m.support_kept) o["support_kept"] = exact(*m.support_kept);
  if (m.answer_kept) o["answer_kept"] = exact(*m.answer_kept);
  if (m.cited_attention) o["cited_attention"] = exact(*m.cited_attention);
  if (m.cited_words) o["cited_words"] = exact(*m.cited_words);
  o["agreement"] = exact(m.agreement);
  o["kl"] = exact(m.kl);
  o["sequence_ratio"] = exact(m.sequence_ratio);
  o["recompute_ratio"] = exact(m.recompute_ratio);
  o["bytes_loaded"] = exact(m.bytes_loaded);
  o["ttft_ms"] = exact(m.ttft_ms);
  o["decode_ms"] = exact(m.decode_ms);
  o["prompt_tokens"] = exact(static_cast<double>(m.prompt_tokens));
  o["answer_tokens"] = exact(static_cast<double>(m.answer_tokens));
  if (m.moved) o["moved"] = exact(*m.moved);
  if (m.corrected) o["corrected"] = exact(*m.corrected);
  o["cited"] = m.cited ? json::value(*m.cited) : json::value(nullptr);
  if (!m.spans.empty()) {
    json::array spans;
    for (const AnswerSpan& s : m.spans)
      spans.push_back(json::array{exact(s.agreement), exact(s.kl)});
    o["spans"] = std::move(spans);
  }
  o["answer"] = m.answer;
  return json::serialize(o) + "\n";
}

/// Returns false if it is not a list of pairs of numbers.
bool parse_spans(const json::value& value, std::vector<AnswerSpan>& out) {
  if (!value.is_array()) return false;
  for (const json::value& pair : value.get_array()) {
    if (!pair.is_array() || pair.get_array().size() != 2) return false;
    const auto agreement = from_exact(&pair.get_array()[0]), kl = from_exact(&pair.get_array()[1]);
    if (!agreement || !kl) return false;
    out.push_back({*agreement, *kl});
  }
  return true;
}

struct StoredRow {
  std::string question, strategy, build;
  Measurement m;
};

std::optional<StoredRow> parse_row(std::string_view line) {
  const auto value = parse_json(line);
  if (!value.ok() || !value->is_object()) return std::nullopt;
  JsonReader r(*value, "");
  StoredRow row;
  for (const auto& [name, out] : {std::pair{"question", &row.question},
                                  {"strategy", &row.strategy},
                                  {"build", &row.build},
                                  {"skipped", &row.m.skipped},
                                  {"answer", &row.m.answer}}) {
    r.string(name, *out, SIZE_MAX, JsonNeed::kRequired);
  }
  r.boolean("has_answers", row.m.has_answers, JsonNeed::kRequired);
  // A null says that it is unknown, and so may not be left out.
  bool ok = value->get_object().contains("cited");
  if (r.has("cited")) r.boolean("cited", row.m.cited.emplace());
  for (const auto& [name, out] : {std::pair{"nll", &row.m.nll},
                                  {"nll_without", &row.m.nll_without},
                                  {"contains_without", &row.m.contains_without},
                                  {"support_kept", &row.m.support_kept},
                                  {"answer_kept", &row.m.answer_kept},
                                  {"cited_attention", &row.m.cited_attention},
                                  {"cited_words", &row.m.cited_words},
                                  {"moved", &row.m.moved},
                                  {"corrected", &row.m.corrected}}) {
    *out = from_exact(r.raw(name));
  }
  if (const auto* spans = r.raw("spans")) ok = parse_spans(*spans, row.m.spans) && ok;
  double prompt = 0, answer = 0;
  for (const auto& [name, out] : {std::pair{"em", &row.m.em},
                                  {"f1", &row.m.f1},
                                  {"contains", &row.m.contains},
                                  {"agreement", &row.m.agreement},
                                  {"kl", &row.m.kl},
                                  {"sequence_ratio", &row.m.sequence_ratio},
                                  {"recompute_ratio", &row.m.recompute_ratio},
                                  {"bytes_loaded", &row.m.bytes_loaded},
                                  {"ttft_ms", &row.m.ttft_ms},
                                  {"decode_ms", &row.m.decode_ms},
                                  {"prompt_tokens", &prompt},
                                  {"answer_tokens", &answer}}) {
    const auto v = from_exact(r.raw(name));
    ok = ok && v;
    if (v) *out = *v;
  }
  if (!ok || !r.ok() || !(prompt >= 0 && prompt < 1e15) || !(answer >= 0 && answer < 1e15))
    return std::nullopt;
  row.m.prompt_tokens = static_cast<std::int64_t>(prompt);
  row.m.answer_tokens = static_cast<std::int64_t>(answer);
  return row;
}

std::string header_text(const std::string& identity) {
  return json::serialize(json::object{{"format", kFormat}, {"identity", identity}}) + "\n";
}

Status write_failed(const std::string& path) {
  return Status::io("cannot write " + path + ": " + std::strerror(errno));
}

}  // namespace

Result<std::unique_ptr<StateFile>> StateFile::open(const std::string& path,
                                                   const std::string& identity,
                                                   const std::string& build, bool any_build) {
  auto out = std::make_unique<StateFile>();
  out->path_ = path;
  out->build_ = build;
  std::error_code ec;
  if (std::filesystem::exists(path, ec)) {
    QUIRE_ASSIGN_OR_RETURN(const auto lines, open_lines(path));
    bool header = false;
    for (;;) {
      auto line = lines->next();
      if (!line.ok() || !line->has_value()) break;
      if (!header) {
        if (**line + "\n" != header_text(identity)) break;
        header = true;
        continue;
      }
      auto row = parse_row(**line);
      if (!row) continue;
      if (!any_build && row->build != build) {
        out->restarted_ = true;
        continue;
      }
      out->rows_[{row->question, row->strategy}] = {std::move(row->m), std::move(row->build)};
    }
    out->restarted_ = out->restarted_ || !header;
  }
  // The file is rewritten, so that an incomplete last row does not join the next one.
  const std::string fresh = path + ".new";
  out->file_ = std::fopen(fresh.c_str(), "wb");
  if (out->file_ == nullptr) return write_failed(fresh);
  std::string text = header_text(identity);
  for (const auto& [key, row] : out->rows_)
    text += row_text(key.first, key.second, row.build, row.measurement);
  if (std::fwrite(text.data(), 1, text.size(), out->file_) != text.size() ||
      std::fflush(out->file_) != 0)
    return write_failed(fresh);
  std::filesystem::rename(fresh, path, ec);
  if (ec) return Status::io("cannot replace " + path + ": " + ec.message());
  return out;
}

StateFile::~StateFile() {
  if (file_ != nullptr) std::fclose(file_);
}

const Measurement* StateFile::find(const std::string& question, const std::string& strategy) const {
  const auto found = rows_.find({question, strategy});
  return found == rows_.end() ? nullptr : &found->second.measurement;
}

std::map<std::string, std::size_t> StateFile::builds() const {
  std::map<std::string, std::size_t> out;
  for (const auto& [key, row] : rows_) ++out[row.build];
  return out;
}

Status StateFile::add(const std::string& question, const std::string& strategy,
                      const Measurement& row) {
  rows_[{question, strategy}] = {row, build_};
  if (file_ == nullptr) return {};
  const std::string text = row_text(question, strategy, build_, row);
  if (std::fwrite(text.data(), 1, text.size(), file_) != text.size() || std::fflush(file_) != 0)
    return write_failed(path_);
  return {};
}

}  // namespace quire
