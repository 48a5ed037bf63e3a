#include "tests/support/service_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/json/serialize.hpp>
#include <cstdlib>
#include <fstream>
#include <random>
#include <sstream>
#include <thread>

#include "base/json_parse.h"
#include "tests/support/api_check.h"

extern char** environ;

namespace quire::testing {
namespace fs = std::filesystem;
namespace {

std::string slurp(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream out;
  out << in.rdbuf();
  return out.str();
}

int exit_code_of(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1000 - WTERMSIG(status);
}

pid_t spawn(const std::vector<std::string>& command, const fs::path& in, const fs::path& out,
            const fs::path& err) {
  // The build folder may be anywhere, so the embedded model is taken from the repository.
  (void)::setenv("QUIRE_MODEL_DIR", (std::string(QUIRE_SOURCE_DIR) + "/models/demo").c_str(), 0);
  std::vector<char*> argv;
  for (const auto& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, in.c_str(), O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_addopen(&actions, 2, err.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  pid_t pid = -1;
  if (::posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ) != 0) pid = -1;
  posix_spawn_file_actions_destroy(&actions);
  return pid;
}

}  // namespace

TempFolder::TempFolder() {
  std::string name = (fs::temp_directory_path() / "quire-test-XXXXXX").string();
  path_ = ::mkdtemp(name.data());
}

TempFolder::~TempFolder() {
  std::error_code ec;
  fs::remove_all(path_, ec);
}

ProcessResult run_process(const std::vector<std::string>& command, const std::string& input) {
  const TempFolder folder;
  {
    std::ofstream in(folder.path() / "in", std::ios::binary);
    in << input;
  }
  ProcessResult r;
  const pid_t pid = spawn(command, folder.path() / "in", folder.path() / "out",
                          folder.path() / "err");
  if (pid < 0) return r;
  int status = 0;
  ::waitpid(pid, &status, 0);
  r.exit_code = exit_code_of(status);
  r.out = slurp(folder.path() / "out");
  r.err = slurp(folder.path() / "err");
  return r;
}

ServiceProcess::~ServiceProcess() {
  if (pid_ > 0) kill();
}

void ServiceProcess::start(const fs::path& store, std::vector<std::string> flags,
                           bool until_ready) {
  log_path_ = store.parent_path() / (store.filename().string() + ".log");
  fs::remove(log_path_);
  std::vector<std::string> command = {QUIRE_BINARY, "serve", "--server.port=0",
                                      // So that no test's auto changes while it runs.
                                      "--policy.evidence=false", "--disk.path=" + store.string(),
                                      "--log.level=debug", "--cache.dram_bytes=67108864",
                                      "--model.working_cache_bytes=268435456"};
  command.insert(command.end(), flags.begin(), flags.end());
  pid_ = spawn(command, "/dev/null", "/dev/null", log_path_);
  ASSERT_GT(pid_, 0);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  port_ = 0;
  while (std::chrono::steady_clock::now() < end) {
    const std::string text = log();
    if (port_ == 0) {
      if (const auto found = text.find("\"listening\""); found != std::string::npos)
        if (const auto p = text.find("\"port\":", found); p != std::string::npos)
          port_ = static_cast<std::uint16_t>(std::atoi(text.c_str() + p + 7));
    }
    if (port_ != 0 && (!until_ready || call("GET", "/readyz").status == 200)) return;
    if (!running()) break;
    std::this_thread::sleep_for(
        std::chrono::milliseconds(20));  // polls a process; no timing is tested
  }
  FAIL() << "the service did not start:\n" << log();
}

std::string ServiceProcess::log() const { return slurp(log_path_); }

bool ServiceProcess::wait_for_log(const std::string& text) const {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (std::chrono::steady_clock::now() < end) {
    if (log().find(text) != std::string::npos) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));  // polling a process
  }
  return false;
}

void ServiceProcess::signal(int number) {
  if (pid_ > 0) ::kill(pid_, number);
}

void ServiceProcess::kill() {
  signal(SIGKILL);
  (void)wait();
}

int ServiceProcess::wait() {
  if (pid_ <= 0) return -1;
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = -1;
  return exit_code_of(status);
}

bool ServiceProcess::running() {
  if (pid_ <= 0) return false;
  int status = 0;
  if (::waitpid(pid_, &status, WNOHANG) != pid_) return true;
  pid_ = -1;
  return false;
}

int ServiceProcess::stop() {
  signal(SIGTERM);
  return wait();
}

RawResponse ServiceProcess::call(const std::string& method, const std::string& target,
                                 const std::string& body, const std::vector<std::string>& headers,
                                 const std::string& content_type) const {
  auto reply = testing::call(port_, method, target, body, headers, content_type);
  for (const auto& problem : check_reply(method, target, reply))
    ADD_FAILURE() << method << " " << target << " -> " << reply.status << ": " << problem << "\n"
                  << reply.body.substr(0, 2000);
  return reply;
}

boost::json::value ServiceProcess::json(const std::string& method, const std::string& target,
                                        const std::string& body,
                                        const std::vector<std::string>& headers,
                                        int* status) const {
  const auto r = call(method, target, body, headers);
  if (status) *status = r.status;
  return parse(r.body);
}

const fs::path& ServiceTest::folder() {
  if (!folder_) folder_ = std::make_unique<TempFolder>();
  return folder_->path();
}

void ServiceTest::start(std::vector<std::string> flags) {
  service = std::make_unique<ServiceProcess>();
  service->start(folder() / "store", std::move(flags));
}

void ServiceTest::TearDownTestSuite() {
  EXPECT_EQ(service->stop(), 0);
  service.reset();
  folder_.reset();
}

boost::json::value parse(const std::string& text) {
  auto v = parse_json(text);
  EXPECT_TRUE(v.ok()) << v.status().message() << "\n" << text.substr(0, 2000);
  return v.ok() ? std::move(*v) : boost::json::value();
}

const boost::json::value& at(const boost::json::value& value, const std::string& path) {
  static const boost::json::value null;
  const boost::json::value* v = &value;
  std::stringstream parts(path);
  for (std::string part; std::getline(parts, part, '.');) {
    if (const auto* o = v->if_object())
      v = o->if_contains(part);
    else if (const auto* a = v->if_array())
      v = a->if_contains(static_cast<std::size_t>(std::atoi(part.c_str())));
    else
      v = nullptr;
    if (!v) return null;
  }
  return *v;
}

std::string text_at(const boost::json::value& value, const std::string& path) {
  const auto& v = at(value, path);
  return v.is_string() ? std::string(v.as_string()) : boost::json::serialize(v);
}

std::int64_t int_at(const boost::json::value& value, const std::string& path) {
  const auto& v = at(value, path);
  return v.is_number() ? v.to_number<std::int64_t>() : -1;
}

std::string sample_text(unsigned seed, int words) {
  static const char* kWords[] = {"river", "market",  "old",     "bridge", "the",
                                 "of",    "and",     "was",     "built",  "by",
                                 "a",     "mayor",   "in",      "north",  "copper",
                                 "guild", "letters", "harbour", "school", "known"};
  std::mt19937 random(seed);
  std::string out = "Report " + std::to_string(seed) + ".";
  for (int i = 0; i < words; ++i) {
    out += std::string(" ") + kWords[random() % std::size(kWords)];
    if (i % 12 == 11) out += ". Item " + std::to_string(random() % 1000);
  }
  return out + ".";
}

std::string quoted(const std::string& text) {
  return boost::json::serialize(boost::json::string_view(text));
}

}  // namespace quire::testing
