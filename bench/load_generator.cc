// Many concurrent clients of a running service: closed loops, Poisson arrivals, and misbehaving
// clients. It is C++ on one thread, because it shares the machine with the service that it
// measures. Prints {"settings": ..., "rows": [...]}.
//   quire_load_generator --port N --pid N --corpus FILE.jsonl [--quick] [--streams N]
//   [--misbehaving N]
#include <algorithm>
#include <boost/asio.hpp>
#include <boost/json.hpp>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace {
namespace asio = boost::asio;
namespace json = boost::json;
using asio::ip::tcp;
using Clock = std::chrono::steady_clock;
using Task = asio::awaitable<void>;
constexpr std::chrono::seconds kPatience{300};
constexpr auto kNoThrow = asio::as_tuple(asio::use_awaitable);

double ms_between(Clock::time_point a, Clock::time_point b) {
  return std::chrono::duration<double, std::milli>(b - a).count();
}
double seconds_since(Clock::time_point start) { return ms_between(start, Clock::now()) / 1000; }
double rounded(double v) { return std::round(v * 1000) / 1000; }

json::value percentile(std::vector<double> values, double share) {
  if (values.empty()) return nullptr;
  std::sort(values.begin(), values.end());
  return rounded(values[std::min(
      values.size() - 1, static_cast<std::size_t>(share * static_cast<double>(values.size())))]);
}

struct Flags {
  unsigned short port = 0;
  int pid = 0, streams = 200, misbehaving = 2000;
  std::string corpus;
  bool quick = false;
};

/// The result of one query. Times are in milliseconds.
struct Outcome {
  int status = 0;
  std::string error;
  bool retry_after = false, finished = false;
  std::optional<double> first;
  std::vector<double> gaps;
};

/// Waits until all tasks that were begun have ended.
class Gathering {
 public:
  explicit Gathering(asio::any_io_executor executor)
      : executor_(executor), done_(executor, Clock::time_point::max()) {}
  void add(Task task) {
    ++open_;
    asio::co_spawn(executor_, std::move(task), [this](std::exception_ptr) {
      if (--open_ == 0) done_.cancel();
    });
  }
  Task all() {
    while (open_ > 0) co_await done_.async_wait(kNoThrow);
  }

 private:
  asio::any_io_executor executor_;
  asio::steady_timer done_;
  std::int64_t open_ = 0;
};

/// State that all clients share; one thread.
struct Load {
  asio::io_context io{1};
  Flags flags;
  std::vector<std::string> documents;
  std::mt19937 random{1};

  tcp::endpoint service() const { return {asio::ip::address_v4::loopback(), flags.port}; }

  std::string request(const std::string& method, const std::string& target, const std::string& type,
                      const std::string& body) const {
    std::string out = method + " " + target + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n";
    if (!body.empty())
      out += "Content-Type: " + type + "\r\nContent-Length: " + std::to_string(body.size()) +
             "\r\n";
    return out + "\r\n" + body;
  }

  /// The temperature is so high that answers seldom end before max_tokens.
  std::string query_body() {
    const std::size_t n = documents.size(), a = random() % n, b = (a + 1 + random() % (n - 1)) % n;
    return json::serialize(json::object{{"query", "What does it say?"},
                                        {"document_ids", {documents[a], documents[b]}},
                                        {"stream", true},
                                        {"temperature", 2.0},
                                        {"seed", random() % (1u << 30)},
                                        {"max_tokens", 8 + random() % 41},
                                        {"explain", "none"},
                                        {"timeout_ms", 600000}});
  }

  /// Returns the whole reply to a request; throws.
  asio::awaitable<std::string> call(std::string text) {
    tcp::socket socket(io);
    co_await socket.async_connect(service(), asio::use_awaitable);
    co_await asio::async_write(socket, asio::buffer(text), asio::use_awaitable);
    std::string reply;
    co_await asio::async_read(socket, asio::dynamic_buffer(reply), kNoThrow);
    co_return reply;
  }
};

/// Reads the events of a streamed answer.
Task read_events(tcp::socket& socket, std::string buffer, Clock::time_point begun, Outcome& out) {
  Clock::time_point last;
  bool failed = false;
  for (;;) {
    const auto [error, size] = co_await asio::async_read_until(socket, asio::dynamic_buffer(buffer),
                                                               '\n', kNoThrow);
    if (error) {
      if (out.error.empty()) out.error = "the stream broke off: " + error.message();
      co_return;
    }
    const auto now = Clock::now();
    const std::string_view line(buffer.data(), size);
    if (failed) {
      out.error = std::string(line.substr(0, 300));
      co_return;
    }
    if (line.starts_with("event: delta")) {
      if (!out.first)
        out.first = ms_between(begun, now);
      else
        out.gaps.push_back(ms_between(last, now));
      last = now;
    } else if (line.starts_with("event: error")) {
      failed = true;
    } else if (line.starts_with("event: done")) {
      out.finished = true;
      co_return;
    }
    buffer.erase(0, size);
  }
}

/// Runs one streamed query on a new connection.
Task query(Load& load, std::vector<Outcome>& outcomes) {
  Outcome out;
  tcp::socket socket(load.io);
  asio::steady_timer patience(load.io, kPatience);
  patience.async_wait([&socket](boost::system::error_code error) {
    if (!error) socket.close();
  });
  const auto begun = Clock::now();
  try {
    co_await socket.async_connect(load.service(), asio::use_awaitable);
    const std::string text = load.request("POST", "/v1/query", "application/json",
                                          load.query_body());
    co_await asio::async_write(socket, asio::buffer(text), asio::use_awaitable);
    std::string buffer;
    const std::size_t size = co_await asio::async_read_until(socket, asio::dynamic_buffer(buffer),
                                                             "\r\n\r\n", asio::use_awaitable);
    std::string head = buffer.substr(0, size);
    buffer.erase(0, size);
    out.status = head.size() > 12 ? std::atoi(head.c_str() + 9) : 0;
    std::transform(head.begin(), head.end(), head.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    out.retry_after = head.find("\r\nretry-after:") != std::string::npos;
    if (out.status == 200) co_await read_events(socket, std::move(buffer), begun, out);
  } catch (const std::exception& e) {
    out.error = e.what();
  }
  outcomes.push_back(std::move(out));
}

/// Runs `streams` clients, each of which asks again as soon as it was answered. Waits for requests
/// that began in time.
Task closed_loop(Load& load, int streams, double seconds, std::vector<Outcome>& outcomes) {
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                      std::chrono::duration<double>(seconds));
  Gathering clients(load.io.get_executor());
  for (int i = 0; i < streams; ++i) {
    clients.add([](Load& l, Clock::time_point until, std::vector<Outcome>& all) -> Task {
      while (Clock::now() < until) co_await query(l, all);
    }(load, end, outcomes));
  }
  co_await clients.all();
}

/// Poisson arrivals at `rate` per second, whatever the service does. Waits for all of them.
Task open_loop(Load& load, double rate, double seconds, std::vector<Outcome>& outcomes) {
  Gathering clients(load.io.get_executor());
  asio::steady_timer timer(load.io);
  std::exponential_distribution<double> pause(rate);
  auto at = Clock::now();
  const auto end = at + std::chrono::duration_cast<Clock::duration>(
                            std::chrono::duration<double>(seconds));
  while (at < end) {
    timer.expires_at(at);
    co_await timer.async_wait(asio::use_awaitable);
    clients.add(query(load, outcomes));
    at += std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(pause(load.random)));
  }
  co_await clients.all();
}

std::int64_t resident_bytes(int pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::atoll(line.c_str() + 6) * 1024;
  }
  return 0;
}

/// Samples the service's resident memory each second until `stop`.
Task watch_memory(Load& load, const bool& stop, std::vector<std::int64_t>& samples) {
  asio::steady_timer timer(load.io);
  while (!stop) {
    samples.push_back(resident_bytes(load.flags.pid));
    timer.expires_after(std::chrono::seconds(1));
    co_await timer.async_wait(asio::use_awaitable);
  }
}

constexpr const char* kBadKinds[] = {"connect", "stall", "trickle", "vanish"};

/// A client that repeatedly connects, stalls, sends a byte a second, or vanishes. `end` is
/// cancelled when the measurement is over.
Task misbehave(Load& load, std::string kind, const bool& stop,
               std::map<std::string, std::int64_t>& counts) {
  const std::string request =
      "POST /v1/query HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "
      "500\r\n\r\n{\"query\":\"";
  asio::steady_timer timer(load.io);
  const auto wait = [&timer](int milliseconds) {
    timer.expires_after(std::chrono::milliseconds(milliseconds));
    return timer.async_wait(kNoThrow);
  };
  while (!stop) {
    auto socket = std::make_shared<tcp::socket>(load.io);
    const auto [failed] = co_await socket->async_connect(load.service(), kNoThrow);
    if (failed) {
      co_await wait(500);
      continue;
    }
    ++counts[kind];
    const auto closed = std::make_shared<bool>(false);
    if (kind == "vanish") {
      co_await asio::async_write(*socket, asio::buffer(request), kNoThrow);
      co_await wait(200);
      socket->set_option(asio::socket_base::linger(true, 0));  // closes with a reset
      socket->close();
      co_await wait(2000);
      continue;
    }
    // Reads until the service closes the connection or the measurement is over.
    const auto sink = std::make_shared<char>();
    asio::async_read(
        *socket, asio::buffer(sink.get(), 1),
        [closed, sink, socket](boost::system::error_code, std::size_t) { *closed = true; });
    if (kind == "stall")
      co_await asio::async_write(*socket, asio::buffer(request.data(), 40), kNoThrow);
    for (std::size_t i = 0; !stop && !*closed; ++i) {
      if (kind == "trickle")
        co_await asio::async_write(*socket, asio::buffer(request.data() + i % request.size(), 1),
                                   kNoThrow);
      co_await wait(1000);
    }
    socket->close();
  }
}

Task hostile(Load& load, int bad, double seconds, std::vector<Outcome>& outcomes,
             std::map<std::string, std::int64_t>& counts) {
  bool stop = false;
  Gathering others(load.io.get_executor());
  for (int i = 0; i < bad; ++i) others.add(misbehave(load, kBadKinds[i % 4], stop, counts));
  asio::steady_timer timer(load.io, std::chrono::seconds(1));
  co_await timer.async_wait(asio::use_awaitable);
  co_await closed_loop(load, 8, seconds, outcomes);
  stop = true;
  co_await others.all();
}

/// Times between tokens as the service sends them, from its own histogram between two moments.
class Served {
 public:
  explicit Served(Load& load) : load_(load) {}
  Task start() { begin_ = co_await counts(); }
  Task stop() {
    grown_ = co_await counts();
    for (auto& [at, n] : grown_) n -= begin_.contains(at) ? begin_[at] : 0;
  }
  /// Interpolates linearly within a bucket; null: no tokens.
  json::value milliseconds(double share) const {
    if (grown_.empty() || grown_.rbegin()->second <= 0) return nullptr;
    const double wanted = share * grown_.rbegin()->second;
    double below = 0, before = 0;
    for (const auto& [at, n] : grown_) {
      if (n >= wanted)
        return std::isinf(at)
                   ? json::value(nullptr)
                   : json::value(
                         rounded(1000 * (below + (at - below) * (wanted - before) / (n - before))));
      below = at, before = n;
    }
    return nullptr;
  }

 private:
  asio::awaitable<std::map<double, double>> counts() {
    constexpr std::string_view kName = "quire_inter_token_latency_seconds_bucket{",
                               kBound = "le=\"";
    const std::string text = co_await load_.call(load_.request("GET", "/metrics", "", ""));
    std::map<double, double> out;
    for (std::size_t at = text.find(kName); at != std::string::npos;
         at = text.find(kName, at + 1)) {
      const std::string line = text.substr(at, text.find('\n', at) - at);
      out[std::strtod(line.c_str() + line.find(kBound) + kBound.size(), nullptr)] += std::strtod(
          line.c_str() + line.rfind(' '), nullptr);
    }
    co_return out;
  }

  Load& load_;
  std::map<double, double> begin_, grown_;
};

double number(const json::object& row, const char* key) {
  const json::value* v = row.if_contains(key);
  return v == nullptr || v->is_null() ? 0 : v->to_number<double>();
}
json::value ratio(double a, double b) {
  return a > 0 && b > 0 ? json::value(std::round(100 * a / b) / 100) : json::value(nullptr);
}

struct Phase {
  std::vector<Outcome> outcomes;
  json::object row;
};

json::object summary(const std::string& name, const std::vector<Outcome>& outcomes, double seconds,
                     const Served& served) {
  std::vector<double> first, gaps;
  std::int64_t answered = 0, refused = 0, without_retry = 0, errors = 0;
  for (const Outcome& o : outcomes) {
    if (o.finished) {
      ++answered;
      if (o.first) first.push_back(*o.first);
      gaps.insert(gaps.end(), o.gaps.begin(), o.gaps.end());
    } else if (o.status == 503) {
      ++refused;
      without_retry += !o.retry_after;
    } else if (++errors <= 3) {
      std::fprintf(stderr, "%s: status %d %s\n", name.c_str(), o.status, o.error.c_str());
    }
  }
  return {
      {"name", name},
      {"seconds", std::round(seconds * 10) / 10},
      {"answered", answered},
      {"answers_per_second", rounded(static_cast<double>(answered) / seconds)},
      {"tokens_per_second", std::round(static_cast<double>(gaps.size() + first.size()) / seconds)},
      {"errors", errors},
      {"refused_503", refused},
      {"refused_without_retry_after", without_retry},
      {"ttft_p50_ms", percentile(first, 0.5)},
      {"ttft_p99_ms", percentile(first, 0.99)},
      {"inter_token_p50_ms", percentile(gaps, 0.5)},
      {"inter_token_p99_ms", percentile(gaps, 0.99)},
      {"served_inter_token_p50_ms", served.milliseconds(0.5)},
      {"served_inter_token_p99_ms", served.milliseconds(0.99)}};
}

asio::awaitable<Phase> measured(Load& load, std::string name,
                                std::function<Task(std::vector<Outcome>&)> work) {
  std::fprintf(stderr, "%s ...\n", name.c_str());
  Phase phase;
  Served served(load);
  co_await served.start();
  const auto begun = Clock::now();
  co_await work(phase.outcomes);
  const double seconds = seconds_since(begun);
  co_await served.stop();
  phase.row = summary(name, phase.outcomes, seconds, served);
  std::fprintf(stderr, "%s\n", json::serialize(phase.row).c_str());
  co_return phase;
}

Task post_documents(Load& load) {
  std::ifstream file(load.flags.corpus);
  std::string body;
  for (std::string line; load.documents.size() < 16 && std::getline(file, line);) {
    load.documents.emplace_back(json::parse(line).at("id").as_string());
    body += line + "\n";
  }
  if (load.documents.size() < 2)
    throw std::runtime_error("--corpus " + load.flags.corpus + ": needs two documents or more");
  const std::string reply = co_await load.call(
      load.request("POST", "/v1/documents?wait=true", "application/x-ndjson", body));
  if (!reply.starts_with("HTTP/1.1 200"))
    throw std::runtime_error("the documents were not taken: " + reply.substr(0, 500));
}

Task run(Load& load) {
  const double brief = load.flags.quick ? 8 : 60, lengthy = load.flags.quick ? 20 : 600;
  co_await post_documents(load);
  std::vector<Outcome> warm;
  co_await closed_loop(load, 4, 2, warm);
  json::array rows;

  Phase capacity = co_await measured(load, "capacity",
                                     [&](auto& all) { return closed_loop(load, 16, brief, all); });
  const double rate = std::max(1.0, number(capacity.row, "answers_per_second"));
  Phase half = co_await measured(load, "half_load",
                                 [&](auto& all) { return open_loop(load, rate / 2, brief, all); });

  std::vector<std::int64_t> samples;
  bool over = false;
  Gathering watch(load.io.get_executor());
  watch.add(watch_memory(load, over, samples));
  Phase streams = co_await measured(load, "streams", [&](auto& all) {
    return closed_loop(load, load.flags.streams, lengthy, all);
  });
  over = true;
  co_await watch.all();
  // In a closed loop all clients are served equally often, so one that waits far longer than the
  // median starves.
  const double slow = 20 * std::max(1.0, number(streams.row, "ttft_p50_ms"));
  const auto settled = static_cast<double>(samples[samples.size() / 5]),
             end = static_cast<double>(samples.back());
  streams.row["streams"] = load.flags.streams;
  streams.row["starved"] = std::count_if(
      streams.outcomes.begin(), streams.outcomes.end(),
      [&](const Outcome& o) { return o.first && *o.first > slow; });
  streams.row["rss_begin_bytes"] = settled;
  streams.row["rss_end_bytes"] = end;
  streams.row["rss_growth"] = std::round(10000 * (end / settled - 1)) / 10000;
  streams.row["rss_most_bytes"] = *std::max_element(samples.begin(), samples.end());

  const double most = 2 * std::max(rate, number(streams.row, "answers_per_second"));
  Phase overload = co_await measured(
      load, "overload", [&](auto& all) { return open_loop(load, most, 2 * brief, all); });
  overload.row["arrivals_per_second"] = rounded(most);
  for (const std::string key : {"inter_token_p99", "served_inter_token_p99"}) {
    overload.row[key + "_over_half_load"] = ratio(number(overload.row, (key + "_ms").c_str()),
                                                  number(half.row, (key + "_ms").c_str()));
  }

  Phase alone = co_await measured(load, "eight_alone",
                                  [&](auto& all) { return closed_loop(load, 8, brief, all); });
  std::map<std::string, std::int64_t> counts;
  Phase beside = co_await measured(load, "eight_beside_misbehaving", [&](auto& all) {
    return hostile(load, load.flags.misbehaving, 2 * brief, all, counts);
  });
  beside.row["misbehaving"] = load.flags.misbehaving;
  beside.row["connections"] = json::value_from(counts);
  // The time to stop the misbehaving clients is not counted for the service.
  beside.row["answers_per_second_over_alone"] = ratio(number(beside.row, "answered") / (2 * brief),
                                                      number(alone.row, "answered") / brief);
  for (Phase* phase : {&capacity, &half, &streams, &overload, &alone, &beside})
    rows.push_back(phase->row);
  rows.push_back(
      json::object{{"name", "memory"}, {"rss_end_bytes", resident_bytes(load.flags.pid)}});
  const json::object settings{{"quick", load.flags.quick},
                              {"documents", load.documents.size()},
                              {"documents_per_query", 2},
                              {"max_tokens", "8 to 48"},
                              {"generator", "one thread of the same machine"}};
  std::printf("%s\n",
              json::serialize(json::object{{"settings", settings}, {"rows", rows}}).c_str());
}

bool read_flags(int argc, char** argv, Flags& flags) {
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--quick") {
      flags.quick = true;
      continue;
    }
    if (++i == argc) return false;
    if (name == "--port")
      flags.port = static_cast<unsigned short>(std::atoi(argv[i]));
    else if (name == "--pid")
      flags.pid = std::atoi(argv[i]);
    else if (name == "--corpus")
      flags.corpus = argv[i];
    else if (name == "--streams")
      flags.streams = std::atoi(argv[i]);
    else if (name == "--misbehaving")
      flags.misbehaving = std::atoi(argv[i]);
    else
      return false;
  }
  return flags.port != 0 && flags.pid != 0 && !flags.corpus.empty() && flags.streams > 0 &&
         flags.misbehaving >= 0;
}

}  // namespace

int main(int argc, char** argv) {
  Load load;
  if (!read_flags(argc, argv, load.flags)) {
    std::fprintf(stderr,
                 "usage: quire_load_generator --port N --pid N --corpus FILE.jsonl [--quick] "
                 "[--streams N] [--misbehaving N]\n");
    return 2;
  }
  int status = 0;
  asio::co_spawn(load.io, run(load), [&](std::exception_ptr error) {
    try {
      if (error) std::rethrow_exception(error);
    } catch (const std::exception& e) {
      std::fprintf(stderr, "error: %s\n", e.what());
      status = 1;
    }
    load.io.stop();
  });
  load.io.run();
  return status;
}
