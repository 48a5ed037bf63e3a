#include "engine/api/plan.h"

#include <charconv>
#include <string_view>

#include "base/index.h"

namespace quire {
namespace {
constexpr std::string_view kWindowCode = "context_length_exceeded: limit ";
constexpr std::string_view kWindowActual = ", actual ";
}  // namespace

std::string_view fate_name(Fate fate) {
  switch (fate) {
    case Fate::kReused:
      return "reused";
    case Fate::kRecomputed:
      return "recomputed";
    case Fate::kComputed:
      return "computed";
    case Fate::kDropped:
      return "dropped";
  }
  return "unknown";
}

std::string_view miss_reason_name(MissReason reason) {
  switch (reason) {
    case MissReason::kNone:
      return "none";
    case MissReason::kNotCached:
      return "not_cached";
    case MissReason::kEvicted:
      return "evicted";
    case MissReason::kModelChanged:
      return "model_changed";
    case MissReason::kSaltMismatch:
      return "salt_mismatch";
    case MissReason::kCorrupt:
      return "corrupt";
    case MissReason::kRecordMissing:
      return "record_missing";
    case MissReason::kTierUnavailable:
      return "tier_unavailable";
    case MissReason::kPolicyOff:
      return "policy_off";
  }
  return "unknown";
}

std::int32_t uncut_token(const PlannedContext& context, std::int32_t token) {
  if (!context.cut) return token;
  std::int32_t before = 0, end = 0;
  for (const TokenRange& r : context.cut->kept) {
    const std::int32_t length = r.end - r.begin;
    if (token < before + length) return r.begin + token - before;
    before += length;
    end = r.end;
  }
  return end;
}

TokenRange uncut_range(const PlannedContext& context, const PlannedBlock& block) {
  const std::int32_t begin = uncut_token(context, block.first_token);
  return {begin, block.num_tokens == 0
                     ? begin
                     : uncut_token(context, block.first_token + block.num_tokens - 1) + 1};
}

Status window_exceeded_status(const WindowExceeded& window, std::string field) {
  return Status::invalid(
      std::move(field),
      std::string(kWindowCode) + std::to_string(window.limit) + std::string(kWindowActual) +
          std::to_string(window.actual) +
          " tokens: the prompt and one token of the answer must fit the model's window");
}

std::optional<WindowExceeded> parse_window_exceeded(const Status& status) {
  if (status.code() != Code::kInvalidArgument) return std::nullopt;
  std::string_view text = status.message();
  const auto at = text.find(kWindowCode);
  if (at == std::string_view::npos) return std::nullopt;
  text.remove_prefix(at + kWindowCode.size());
  WindowExceeded window;
  auto parsed = std::from_chars(text.data(), text.data() + text.size(), window.limit);
  if (parsed.ec != std::errc()) return std::nullopt;
  text.remove_prefix(to_size(parsed.ptr - text.data()));
  if (!text.starts_with(kWindowActual)) return std::nullopt;
  text.remove_prefix(kWindowActual.size());
  parsed = std::from_chars(text.data(), text.data() + text.size(), window.actual);
  if (parsed.ec != std::errc()) return std::nullopt;
  return window;
}

}  // namespace quire
