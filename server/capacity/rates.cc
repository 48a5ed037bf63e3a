#include "server/capacity/rates.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <cmath>

#include "base/index.h"
#include "base/json_parse.h"
#include "base/json_reader.h"
#include "server/config/config.h"
#include "server/json/text.h"

namespace quire::capacity {
namespace json = boost::json;
namespace {

constexpr std::string_view kFormat = "quire-rates-1";
constexpr std::size_t kMostPoints = 256, kMostText = 1024, kMostFileBytes = 1 << 20;
constexpr double kMost = 1e15;

double value_at(const std::vector<RatePoint>& points, double at) {
  const RatePoint &first = points.front(), &last = points.back();
  if (points.size() == 1 || at <= first.at) return first.ms * at / first.at;
  const auto above = std::ranges::find_if(points, [at](const RatePoint& p) { return p.at >= at; });
  const RatePoint& b = above == points.end() ? last : *above;
  const RatePoint& a = *(above == points.end() ? points.end() - 2 : above - 1);
  return std::max(0.0, a.ms + (b.ms - a.ms) * (at - a.at) / (b.at - a.at));
}

json::array points_json(const std::vector<RatePoint>& points, std::string_view at) {
  json::array out;
  for (const RatePoint& p : points) out.push_back(json::object{{at, p.at}, {"ms", p.ms}});
  return out;
}

json::object place_json(const PlaceRate& p) {
  return {{"ms_per_context", p.ms_per_context}, {"ms_per_token", p.ms_per_token}};
}

void read_points(JsonReader& r, std::string_view name, std::string_view at,
                 std::vector<RatePoint>& out, double least = 1,
                 JsonNeed need = JsonNeed::kRequired) {
  const json::array* list = r.array(name, need == JsonNeed::kRequired ? 1 : 0, kMostPoints, need);
  for (std::size_t i = 0; list != nullptr && r.ok() && i < list->size(); ++i) {
    JsonReader p((*list)[i], r.path_of(std::string(name) + "[" + std::to_string(i) + "]"));
    RatePoint point;
    p.number(at, point.at, least, kMost, JsonNeed::kRequired);
    p.number("ms", point.ms, 0, kMost, JsonNeed::kRequired);
    p.finish();
    if (p.ok() && !out.empty() && point.at <= out.back().at)
      p.fail(at, p.path_of(at) + " must be above that of the point before");
    r.adopt(p.error());
    out.push_back(point);
  }
}

void read_place(JsonReader& r, std::string_view name, PlaceRate& out, JsonNeed need) {
  const json::object* o = r.object(name, need);
  if (o == nullptr) return;
  JsonReader p(*o, r.path_of(name));
  p.number("ms_per_context", out.ms_per_context, 0, kMost, JsonNeed::kRequired);
  p.number("ms_per_token", out.ms_per_token, 0, kMost, JsonNeed::kRequired);
  p.finish();
  r.adopt(p.error());
}

}  // namespace

double Rates::prefill_ms(double tokens) const { return value_at(prefill, tokens); }
double Rates::decode_ms(double answers) const {
  // A step of one answer costs what it costs; only beyond the points does it go on in proportion.
  return value_at(decode, std::max(answers, decode.front().at));
}
double Rates::idle_ms(double seconds) const {
  if (idle.empty() || seconds <= 0) return 0;
  return value_at(idle, std::min(seconds, idle.back().at));
}
double Rates::host_share(int busy) const {
  if (busy <= 1) return 1;
  if (host_speed.empty()) return 1.0 / busy;
  if (std::cmp_less_equal(busy, host_speed.size())) return host_speed[at(busy - 1)];
  return host_speed.back() * static_cast<double>(host_speed.size()) / busy;
}

std::string rates_json(const Rates& rates) {
  json::object o{{"format", kFormat},
                 {"model", rates.model},
                 {"strategy", rates.strategy},
                 {"bytes_per_token", rates.bytes_per_token},
                 {"stored_bytes_per_token", rates.stored_bytes_per_token},
                 {"stored_bytes_per_context", rates.stored_bytes_per_context},
                 {"disk_bytes_beside", rates.disk_bytes_beside},
                 {"request_ms", rates.request_ms},
                 {"idle", points_json(rates.idle, "seconds")},
                 {"question_ms_per_token", rates.question_ms_per_token},
                 {"prefill", points_json(rates.prefill, "tokens")},
                 {"dram", place_json(rates.dram)},
                 {"disk", place_json(rates.disk)},
                 {"remote", place_json(rates.remote)},
                 {"decode", points_json(rates.decode, "answers")},
                 {"step_beside", rates.step_beside}};
  if (!rates.host_speed.empty())
    o["host_speed"] = json::array(rates.host_speed.begin(), rates.host_speed.end());
  return to_text(o);
}

Result<Rates> parse_rates(std::string_view text) {
  const auto value = parse_json(text, kOutsideJson);
  if (!value.ok()) return Status::invalid("rates", value.status().message());
  JsonReader r(*value, "");
  Rates out;
  std::string format;
  r.string("format", format, kMostText, JsonNeed::kRequired);
  if (r.ok() && format != kFormat)
    r.fail("format", "format is '" + format + "'; it must be " + std::string(kFormat) +
                         ", as 'quire bench rates' writes it");
  r.string("model", out.model, kMostText);
  r.string("strategy", out.strategy, kMostText);
  r.number("bytes_per_token", out.bytes_per_token, 1, kMost, JsonNeed::kRequired);
  out.stored_bytes_per_token = out.bytes_per_token;
  r.number("stored_bytes_per_token", out.stored_bytes_per_token, 1, kMost);
  r.number("stored_bytes_per_context", out.stored_bytes_per_context, 0, kMost);
  if (r.ok() && out.stored_bytes_per_token < out.bytes_per_token)
    r.fail("stored_bytes_per_token",
           "stored_bytes_per_token must be bytes_per_token at least, as all KV is stored");
  r.number("disk_bytes_beside", out.disk_bytes_beside, 0, kMost);
  r.number("request_ms", out.request_ms, 0, kMost, JsonNeed::kRequired);
  read_points(r, "idle", "seconds", out.idle, 1e-6, JsonNeed::kOptional);
  r.number("question_ms_per_token", out.question_ms_per_token, 0, kMost, JsonNeed::kRequired);
  read_points(r, "prefill", "tokens", out.prefill);
  read_place(r, "dram", out.dram, JsonNeed::kRequired);
  read_place(r, "disk", out.disk, JsonNeed::kRequired);
  read_place(r, "remote", out.remote, JsonNeed::kOptional);
  read_points(r, "decode", "answers", out.decode);
  r.number("step_beside", out.step_beside, 0, 10);
  const json::array* speeds = r.array("host_speed", 1, kMostPoints);
  for (std::size_t i = 0; speeds != nullptr && r.ok() && i < speeds->size(); ++i) {
    const json::value& v = (*speeds)[i];
    const double speed = v.is_number() ? v.to_number<double>() : 0;
    if (speed > 0 && speed <= 1)
      out.host_speed.push_back(speed);
    else
      r.fail("host_speed", "host_speed must hold numbers above 0, at most 1");
  }
  r.finish();
  if (r.error()) return Status::invalid(r.error()->path, r.error()->message);
  return out;
}

Result<Rates> read_rates(const std::string& path) {
  QUIRE_ASSIGN_OR_RETURN(const std::string text, read_file(path, kMostFileBytes));
  auto rates = parse_rates(text);
  if (!rates.ok()) return rates.status().with_context(path);
  return rates;
}

}  // namespace quire::capacity
