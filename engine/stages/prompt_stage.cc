#include "engine/stages/prompt_stage.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/index.h"
#include "engine/compress/compressor.h"
#include "engine/plan/plan_builder.h"
#include "engine/plan/request_checks.h"
#include "engine/stages/plan_stage.h"

namespace quire {
namespace {

/// Returns the entries of `kept` (ascending) within the range, as ranges relative to its beginning.
std::vector<TokenRange> ranges_within(std::span<const std::int32_t> kept, const RowRange& range) {
  std::vector<TokenRange> out;
  for (auto it = std::lower_bound(kept.begin(), kept.end(), range.begin);
       it != kept.end() && *it < range.end; ++it) {
    const auto token = static_cast<std::int32_t>(*it - range.begin);
    if (!out.empty() && out.back().end == token)
      ++out.back().end;
    else
      out.push_back({token, token + 1});
  }
  return out;
}

void keep_ranges(std::vector<std::int32_t>& ids, std::span<const TokenRange> ranges) {
  std::vector<std::int32_t> out;
  for (const TokenRange& r : ranges)
    out.insert(out.end(), ids.begin() + r.begin, ids.begin() + r.end);
  ids = std::move(out);
}

/// Returns the number of tokens of the uncached text; copies of a context count once.
std::int64_t uncached_tokens(const QueryRequest& request) {
  const std::vector<std::size_t> first = first_equal_contexts(request);
  std::int64_t n = count_of(request.prefix_ids) + count_of(request.suffix_ids);
  for (std::size_t i = 0; i < request.contexts.size(); ++i) {
    if (!request.contexts[i].key && first[i] == i) n += count_of(request.contexts[i].token_ids);
  }
  return n;
}

}  // namespace

Result<bool> cuts_prompt(const QueryResources& core, const QueryRequest& request) {
  QUIRE_ASSIGN_OR_RETURN(
      const auto compressor,
      prompt_compressors().make(request.cache.prompt_compression, request.cache.prompt_options));
  if (compressor->keeps_everything() || core.draft == nullptr) return false;
  QUIRE_RETURN_IF_ERROR(validate_uncut(core.facts, request));
  const std::int64_t tokens = uncached_tokens(request);
  return tokens > compressor->capacity(tokens);
}

PromptStage::PromptStage(StageResources& shared)
    : shared_(shared), run_(shared.run), started_(Clock::now()) {
  const CacheOptions& asked = run_.request.cache;
  cut_.by = asked.prompt_compression;
  lay_out();
  cut_.tokens = cut_.kept_tokens = cuttable_tokens();
  auto compressor = prompt_compressors().make(asked.prompt_compression, asked.prompt_options);
  QUIRE_CHECK(compressor.ok(), "a prompt compressor was not checked");
  compressor_ = std::move(*compressor);
  const std::int64_t capacity = compressor_->capacity(cut_.tokens);
  if (cut_.tokens <= capacity)
    leave_whole("the uncached text has no more than " + std::to_string(capacity) + " tokens");
  else if (run_.core.draft == nullptr)
    leave_whole("no draft model is loaded (model.draft_path)");
  // One reading serves both purposes.
  if (const auto kv = compressors().make(asked.compress == "auto" ? "none" : asked.compress,
                                         asked.options);
      kv.ok()) {
    answer_tokens_ = std::min<std::int32_t>((*kv)->lookahead_tokens(),
                                            run_.request.sampling.max_tokens);
  }
}

PromptStage::~PromptStage() {
  if (run_.core.prompt_reader == this) run_.core.prompt_reader = nullptr;
}

void PromptStage::add_part(PromptCut::Part part, std::int32_t context,
                           const std::vector<std::int32_t>& ids, bool cuttable) {
  const std::int64_t begin = count_of(prompt_);
  prompt_.insert(prompt_.end(), ids.begin(), ids.end());
  parts_.push_back({part, context, {begin, count_of(prompt_)}, cuttable});
}

/// Lays out the prompt in order, each context at its first occurrence.
void PromptStage::lay_out() {
  const QueryRequest& request = run_.request;
  first_equal_ = first_equal_contexts(request);
  contexts_.resize(request.contexts.size());
  add_part(PromptCut::Part::kPrefix, -1, request.prefix_ids, true);
  for (std::size_t i = 0; i < request.contexts.size(); ++i) {
    if (first_equal_[i] == i)
      add_part(PromptCut::Part::kContext, static_cast<std::int32_t>(i),
               request.contexts[i].token_ids, !request.contexts[i].key);
  }
  add_part(PromptCut::Part::kQuestion, -1, request.suffix_ids, true);
}

std::int64_t PromptStage::cuttable_tokens() const {
  std::int64_t n = 0;
  for (const Part& p : parts_) n += p.cuttable ? p.tokens.end - p.tokens.begin : 0;
  return n;
}

std::vector<std::int32_t>& PromptStage::ids_of(const Part& part) {
  switch (part.part) {
    case PromptCut::Part::kPrefix:
      return run_.request.prefix_ids;
    case PromptCut::Part::kContext:
      return run_.request.contexts[at(part.context)].token_ids;
    case PromptCut::Part::kQuestion:
      break;
  }
  return run_.request.suffix_ids;
}

/// Returns the ranges that stay besides documents: the system part and the question, or in a plain
/// prompt the beginning that all prompts of the model share. Control tokens all stay, as a draft
/// with another vocabulary does not know them.
std::vector<RowRange> PromptStage::stays() const {
  std::vector<RowRange> out;
  const auto& begin = run_.core.facts.ingest_prefix;
  if (!run_.request.contexts.empty()) {
    out = {parts_.front().tokens, parts_.back().tokens};
  } else if (prompt_.size() >= begin.size() &&
             std::equal(begin.begin(), begin.end(), prompt_.begin())) {
    out = {{0, count_of(begin)}};
  }
  for (std::int64_t t = 0; retokenization_ && t < count_of(prompt_); ++t) {
    if (run_.core.tokenizer->is_special(prompt_[at(t)])) out.push_back({t, t + 1});
  }
  return out;
}

void PromptStage::leave_whole(std::string why) {
  cut_.note = std::move(why);
  done_ = true;
}

bool PromptStage::ready() {
  return run_.core.prompt_reader == nullptr || run_.core.prompt_reader == this;
}

/// Returns a key of everything that a reading depends on, including who may share it.
Digest PromptStage::reading_key() const {
  const QueryRequest& request = run_.request;
  Sha256 hash;
  hash.update_field("quire-prompt-reading");
  hash.update_field(request.tenant);
  hash.update(std::as_bytes(std::span(request.salt_digest)));
  hash.update_field(request.cache.prompt_compression);
  for (const auto& [name, value] : request.cache.prompt_options.given())
    hash.update_field(name).update_field(value);
  hash.update_u64(static_cast<std::uint64_t>(answer_tokens_));
  hash.update(std::as_bytes(std::span(prompt_)));
  return hash.finish();
}

Status PromptStage::begin_reading() {
  Draft& draft = *run_.core.draft;
  run_.core.prompt_reader = this;
  const std::int32_t rows_ahead = compressor_->rows_ahead();
  const std::int64_t ahead = std::max(rows_ahead, answer_tokens_);
  if (!draft.same_tokens())
    retokenization_.emplace(*run_.core.tokenizer, prompt_, draft.tokenizer());
  const std::vector<std::int32_t>& read = retokenization_ ? retokenization_->ids() : prompt_;
  if (read.empty()) return Status::invalid("prompt", "the prompt is empty for the draft");
  if (PromptReading::tokens_over(draft, count_of(read), ahead) > 0) {
    return Status::invalid("prompt",
                           "the prompt has " + std::to_string(read.size()) +
                               " tokens for the draft, whose window holds " +
                               std::to_string(draft.reader().rope().max_positions() - ahead) +
                               " besides its answer");
  }
  PromptReadSetup setup;
  setup.draft = &draft.reader().config();
  setup.rope = &draft.reader().rope();
  setup.num_tokens = count_of(read);
  setup.num_ahead = ahead;
  compressor_->begin(setup);
  if (const ReadPrompt* known = run_.core.read_prompts.find(reading_key())) {
    cut_.read_before = true;
    cut_by(*known);
    return {};
  }
  reading_ = std::make_unique<PromptReading>(draft, *compressor_, read, rows_ahead, answer_tokens_);
  return {};
}

Status PromptStage::step() {
  Status status;
  try {
    if (!reading_) status = begin_reading();
    if (status.ok() && reading_) status = reading_->step(run_.core.chunk_tokens);
  } catch (const std::exception& e) {
    status = Status::internal(e.what());
  }
  if (!status.ok()) {
    reading_.reset();
    leave_whole(status.message());
  } else if (reading_ && reading_->done()) {
    end_reading();
  } else if (reading_) {
    return {};
  }
  run_.core.prompt_reader = nullptr;
  const auto now = Clock::now();
  run_.stats.prompt_ms = ms_between(started_, now);
  run_.add_span("cut_prompt", started_, now);
  return {};
}

void PromptStage::end_reading() {
  ReadPrompt read;
  read.answer = reading_->answer();
  read.scores = retokenization_ ? retokenization_->bring_back(compressor_->scores())
                                : compressor_->scores();
  reading_.reset();
  cut_by(read);
  run_.core.read_prompts.add(reading_key(), std::move(read));
}

void PromptStage::cut_by(const ReadPrompt& read) {
  answer_ = read.answer;
  std::vector<std::uint8_t> cuttable(prompt_.size(), 0);
  for (const Part& p : parts_) {
    if (p.cuttable)
      std::fill(cuttable.begin() + p.tokens.begin, cuttable.begin() + p.tokens.end,
                std::uint8_t{1});
  }
  const std::vector<RowRange> stay = stays();
  take_out(compressor_->kept({read.scores, cuttable, stay}));
  done_ = true;
}

void PromptStage::take_out(std::span<const std::int32_t> kept) {
  cut_.kept_tokens = count_of(kept);
  cut_.lookahead_tokens = count_of(answer_);
  for (const Part& p : parts_) {
    if (!p.cuttable) continue;
    const CutText left{p.tokens.end - p.tokens.begin, ranges_within(kept, p.tokens)};
    cut_.parts.push_back({p.part, p.context, left});
    std::vector<std::int32_t>& ids = ids_of(p);
    keep_ranges(ids, left.kept);
    // What was cut must not be seen through a chunk behind it.
    for (QueryContext& c : run_.request.contexts)
      if (!c.key) c.left_context.clear();
    cut_.removed_tokens += left.uncut_tokens - count_of(ids);
    if (p.context >= 0) contexts_[at(p.context)] = left;
  }
  for (std::size_t i = 0; i < contexts_.size(); ++i) {
    const std::size_t first = first_equal_[i];
    if (first == i || !contexts_[first]) continue;
    // A copy stays a copy.
    contexts_[i] = contexts_[first];
    cut_.removed_tokens += contexts_[i]->uncut_tokens -
                           count_of(run_.request.contexts[first].token_ids);
    run_.request.contexts[i].token_ids = run_.request.contexts[first].token_ids;
  }
}

AfterStage PromptStage::next() {
  FinishedCut cut{std::move(cut_), std::move(contexts_), answer()};
  return {std::make_unique<PlanStage>(shared_, std::move(cut))};
}

std::vector<std::int32_t> PromptStage::answer() const {
  if (answer_.empty() || answer_tokens_ == 0) return {};
  std::vector<std::int32_t> ids = run_.core.draft->to_target(answer_);
  if (ids.size() > at(answer_tokens_)) ids.resize(at(answer_tokens_));
  return ids;
}

}  // namespace quire
