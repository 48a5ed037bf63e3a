#include "cachestore/catalog/postgres_connection.h"

#include <libpq-fe.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "base/index.h"
#include "cachestore/catalog/shared_catalog.h"

namespace quire {
namespace {

/// How long a wait goes on before it looks whether the service stops.
constexpr std::chrono::milliseconds kSlice{100};

int left_ms(Clock::time_point until, std::chrono::milliseconds most) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
  return static_cast<int>(std::clamp(left, std::chrono::milliseconds(0), most).count());
}

constexpr const char* kPort = "port";
constexpr const char* kDefaultPort = "5432";
/// Of statements that would write where nothing may be written, and of beginning such a transaction
/// at a standby, which is a feature that this one lacks.
constexpr std::array<std::string_view, 2> kReadOnly = {"25006", "0A000"};

/// Returns the first line of a message.
std::string first_line(const char* text) {
  std::string line = text == nullptr ? "" : text;
  line.resize(std::min(line.size(), line.find('\n')));
  return line.empty() ? "no reason was given" : line;
}

struct Parsed {
  PQconninfoOption* options = nullptr;
  char* error = nullptr;
  explicit Parsed(const std::string& url) { options = PQconninfoParse(url.c_str(), &error); }
  ~Parsed() {
    PQconninfoFree(options);
    PQfreemem(error);
  }
  Parsed(const Parsed&) = delete;
  Parsed& operator=(const Parsed&) = delete;
  std::string value(std::string_view name, const char* otherwise) const {
    for (auto* o = options; o != nullptr && o->keyword != nullptr; ++o)
      if (name == o->keyword && o->val != nullptr && *o->val != '\0') return o->val;
    return otherwise;
  }
};

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts(1);
  for (const char c : list) {
    if (c == ',')
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

/// Options that choose one of the address' hosts, as keyword and value.
using Host = std::vector<std::pair<const char*, std::string>>;

/// Returns it for messages: "db1:5432".
std::string address_of(const Host& host) {
  std::string address;
  for (const auto& [name, value] : host) {
    // A name and its address are two options.
    if (address.empty() || std::string_view(name) == kPort)
      address += (address.empty() ? "" : ":") + value;
  }
  return address;
}

/// Returns the hosts of an address that has several; else one without options.
std::vector<Host> hosts_of(const std::string& url) {
  const Parsed parsed(url);
  const auto names = split(parsed.value("host", "")),
             addresses = split(parsed.value("hostaddr", "")),
             ports = split(parsed.value("port", ""));
  const std::size_t count = std::max(names.size(), addresses.size());
  const auto fits = [count](const std::vector<std::string>& list) {
    if (list.size() == 1) return list[0].empty();
    return list.size() == count && std::ranges::none_of(list, &std::string::empty);
  };
  // What does not fit is for the library to refuse, or to fill in.
  if (count < 2 || !fits(names) || !fits(addresses) || (ports.size() > 1 && ports.size() != count))
    return std::vector<Host>(1);
  std::vector<Host> hosts(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (names.size() == count) hosts[i].emplace_back("host", names[i]);
    if (addresses.size() == count) hosts[i].emplace_back("hostaddr", addresses[i]);
    if (ports.size() == count)
      hosts[i].emplace_back(kPort, ports[i].empty() ? kDefaultPort : ports[i]);
  }
  return hosts;
}

}  // namespace

Status check_postgres_url(const std::string& url) {
  const auto wrong = [](const std::string& what) {
    return Status::invalid(
        "catalog.url",
        "catalog.url " + what +
            "; use postgresql://user:password@host:5432/database?sslmode=verify-full");
  };
  if (!url.starts_with("postgresql://") && !url.starts_with("postgres://"))
    return wrong("does not begin with postgresql://");
  // The library's message may quote the address, and with it a password.
  if (Parsed(url).options == nullptr)
    return wrong(
        "is not an address as PostgreSQL's programs take it (write special characters of user and "
        "password as %XX, and check the names of the options)");
  return {};
}

std::string postgres_address(const std::string& url) {
  const Parsed parsed(url);
  std::string servers;
  for (const Host& host : hosts_of(url))
    if (!host.empty()) servers += (servers.empty() ? "" : ",") + address_of(host);
  if (servers.empty())
    servers = parsed.value("host", "localhost") + ":" + parsed.value("port", kDefaultPort);
  return servers + "/" + parsed.value("dbname", "");
}

PostgresValue::PostgresValue(std::uint64_t number) : number_(8, '\0'), is_number_(true) {
  for (std::size_t i = 0; i < 8; ++i) number_[i] = static_cast<char>(number >> (56 - 8 * i));
}

PostgresRows::PostgresRows(pg_result* result) : result_(result, PQclear) {}

int PostgresRows::size() const { return PQntuples(result_.get()); }

std::string_view PostgresRows::bytes(int row, int column) const {
  return {PQgetvalue(result_.get(), row, column),
          static_cast<std::size_t>(PQgetlength(result_.get(), row, column))};
}

std::uint64_t PostgresRows::number(int row, int column) const {
  const std::string_view data = bytes(row, column);
  QUIRE_CHECK(data.size() == 8, "the column has the type bigint");
  std::uint64_t n = 0;
  for (const char c : data) n = n << 8 | static_cast<unsigned char>(c);
  return n;
}

std::string_view PostgresRows::command() const { return PQcmdStatus(result_.get()); }

Result<std::unique_ptr<PostgresConnection>> PostgresConnection::open(
    const std::string& url, Clock::time_point deadline, const std::atomic<bool>& stop,
    std::atomic<std::size_t>* first_host) {
  // The library goes on to the next host only where one refuses. One that is silent would keep it
  // until the deadline, so each host has a part of the time.
  const std::vector<Host> hosts = hosts_of(url);
  const std::size_t first = first_host != nullptr ? first_host->load() : 0;
  std::string reasons;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    const std::size_t at = (first + i) % hosts.size();
    // What the address says of the first four counts. A server that is gone is noticed within a
    // minute, also by who only listens. Of several servers, one that only reads is a standby.
    std::vector<const char*> names = {"keepalives_idle", "keepalives_interval", "keepalives_count"};
    std::vector<const char*> values = {"30", "10", "3"};
    const auto add = [&](const char* name, const char* value) {
      names.push_back(name);
      values.push_back(value);
    };
    if (hosts.size() > 1) add("target_session_attrs", "read-write");
    add("dbname", url.c_str());
    for (const auto& [name, value] : hosts[at]) add(name, value.c_str());
    add("fallback_application_name", "quire");
    add(nullptr, nullptr);
    pg_conn* const raw = PQconnectStartParams(names.data(), values.data(), /*expand_dbname=*/1);
    if (raw == nullptr) return catalog_away("no memory for a connection");
    std::unique_ptr<PostgresConnection> connection(new PostgresConnection(raw, stop));
    const auto now = Clock::now();
    const auto part = (deadline - now) / (count_of(hosts) - static_cast<std::int64_t>(i));
    const Status status = connection->connect(now + part);
    if (status.ok()) {
      if (first_host != nullptr) first_host->store(at);
      return connection;
    }
    if (stop || hosts.size() == 1) return status;
    reasons += (reasons.empty() ? "" : "; ") + address_of(hosts[at]) + ": " + why_away(status);
  }
  return catalog_away("none of the servers takes changes: " + reasons);
}

PostgresConnection::~PostgresConnection() { PQfinish(connection_); }

std::string PostgresConnection::last_error() const {
  return first_line(PQerrorMessage(connection_));
}

Status PostgresConnection::lost(const std::string& why) {
  broken_ = true;
  return catalog_away(why);
}

Status PostgresConnection::connect(Clock::time_point deadline) {
  PQsetNoticeProcessor(
      connection_, [](void*, const char*) {}, nullptr);
  if (PQstatus(connection_) == CONNECTION_BAD) return lost(last_error());
  for (auto state = PGRES_POLLING_WRITING; state != PGRES_POLLING_OK;
       state = PQconnectPoll(connection_)) {
    if (state == PGRES_POLLING_FAILED) return lost(last_error());
    QUIRE_RETURN_IF_ERROR(wait_for_socket(state == PGRES_POLLING_WRITING, deadline));
  }
  if (PQsetnonblocking(connection_, 1) != 0 || PQenterPipelineMode(connection_) != 1)
    return lost(last_error());
  return {};
}

Status PostgresConnection::wait_for_socket(bool write, Clock::time_point deadline) {
  for (;;) {
    if (stop_) return lost("the service stops");
    if (Clock::now() >= deadline) return lost("no answer in time (catalog.timeout_ms)");
    pollfd p{PQsocket(connection_), static_cast<short>(write ? POLLIN | POLLOUT : POLLIN), 0};
    if (::poll(&p, 1, left_ms(deadline, kSlice)) > 0) return {};
  }
}

Status PostgresConnection::receive(Clock::time_point deadline, std::vector<PostgresRows>* rows) {
  Status failure;
  for (;;) {
    while (PQisBusy(connection_) != 0) {
      // Answers are read while statements are still being sent: the server may wait for that.
      const int unsent = PQflush(connection_);
      if (unsent < 0) return lost(last_error());
      QUIRE_RETURN_IF_ERROR(wait_for_socket(unsent > 0, deadline));
      if (PQconsumeInput(connection_) == 0) return lost(last_error());
    }
    PGresult* const result = PQgetResult(connection_);
    if (result == nullptr) {  // the end of one statement's answer
      if (PQstatus(connection_) == CONNECTION_BAD) return lost(last_error());
      continue;
    }
    PostgresRows answer(result);
    switch (PQresultStatus(result)) {
      case PGRES_PIPELINE_SYNC:
        return failure;
      case PGRES_COMMAND_OK:
      case PGRES_TUPLES_OK:
        rows->push_back(std::move(answer));
        break;
      case PGRES_PIPELINE_ABORTED:
        break;
      default:
        if (PQstatus(connection_) == CONNECTION_BAD) return lost(last_error());
        if (failure.ok())
          failure = catalog_away(first_line(PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY)));
        // After a failover another server is the primary, and the next connection looks for it.
        if (const char* state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
            state != nullptr && std::ranges::find(kReadOnly, state) != kReadOnly.end())
          broken_ = true;
    }
  }
}

Status PostgresConnection::run(std::span<const PostgresStatement> statements,
                               Clock::time_point deadline, std::vector<PostgresRows>* rows) {
  if (broken_) return lost("the connection was lost");
  for (const PostgresStatement& s : statements) {
    std::vector<const char*> data;
    std::vector<int> lengths, formats(s.values.size(), 1);
    for (const PostgresValue& v : s.values) {
      data.push_back(v.data().data() == nullptr ? "" : v.data().data());
      lengths.push_back(static_cast<int>(v.data().size()));
    }
    const int count = static_cast<int>(s.values.size());
    const int sent = s.name.empty()
                         ? PQsendQueryParams(connection_, s.sql.data(), count, nullptr, data.data(),
                                             lengths.data(), formats.data(), /*resultFormat=*/1)
                         : PQsendQueryPrepared(connection_, s.name.data(), count, data.data(),
                                               lengths.data(), formats.data(), /*resultFormat=*/1);
    if (sent != 1) return lost(last_error());
  }
  if (PQpipelineSync(connection_) != 1) return lost(last_error());
  return receive(deadline, rows);
}

Status PostgresConnection::prepare(std::span<const Prepared> statements,
                                   Clock::time_point deadline) {
  for (const Prepared& s : statements)
    if (PQsendPrepare(connection_, s.name, s.sql, 0, nullptr) != 1) return lost(last_error());
  if (PQpipelineSync(connection_) != 1) return lost(last_error());
  std::vector<PostgresRows> none;
  return receive(deadline, &none);
}

void PostgresConnection::roll_back(Clock::time_point deadline) {
  if (broken_ || PQtransactionStatus(connection_) == PQTRANS_IDLE) return;
  std::vector<PostgresRows> none;
  const PostgresStatement statement{{}, "ROLLBACK", {}};
  if (!run({&statement, 1}, deadline, &none).ok()) broken_ = true;
}

void PostgresConnection::wait_for_announcement(int wake_fd, std::chrono::milliseconds longest) {
  const auto until = Clock::now() + longest;
  for (;;) {
    if (PQconsumeInput(connection_) == 0) {
      broken_ = true;
      return;
    }
    bool told = false;
    while (PGnotify* const note = PQnotifies(connection_)) {
      told = true;
      PQfreemem(note);
    }
    if (told || stop_ || Clock::now() >= until) return;
    pollfd p[2] = {{PQsocket(connection_), POLLIN, 0}, {wake_fd, POLLIN, 0}};
    (void)::poll(p, 2, left_ms(until, longest));
    if ((p[1].revents & POLLIN) != 0) return;
  }
}

}  // namespace quire
