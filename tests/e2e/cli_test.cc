// The command line works against a running service, and some commands need none.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/json/serialize.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <thread>

#include "server/support/affinity.h"
#include "tests/support/service_process.h"

namespace quire::testing {
namespace {

/// What a command sent to a server, and how it ended.
struct Asked {
  std::string head;
  ProcessResult result;
};

/// Runs a command, given the arguments behind --server, of which one request gets this reply.
Asked ask_once(std::vector<std::string> command, const std::vector<std::string>& arguments,
               std::string_view reply) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  EXPECT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(::listen(listener, 1), 0);
  EXPECT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
  std::string head;
  std::thread server([&] {
    const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    char piece[4096];
    while (head.find("\r\n\r\n") == std::string::npos) {
      const ssize_t n = ::recv(fd, piece, sizeof piece, 0);
      if (n <= 0) break;
      head.append(piece, static_cast<std::size_t>(n));
    }
    (void)::send(fd, reply.data(), reply.size(), MSG_NOSIGNAL);
    ::close(fd);
  });
  command.push_back("--server=http://127.0.0.1:" + std::to_string(ntohs(address.sin_port)));
  command.insert(command.end(), arguments.begin(), arguments.end());
  const ProcessResult result = run_process(command);
  ::shutdown(listener, SHUT_RDWR);  // for a command that has sent nothing
  server.join();
  ::close(listener);
  return {head, result};
}

/// Returns the head of the request that a command sends, whose reply is a refusal.
std::string head_sent_by(const std::vector<std::string>& command,
                         const std::vector<std::string>& arguments) {
  const Asked asked = ask_once(command, arguments,
                               "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n");
  EXPECT_EQ(asked.result.exit_code, 1);
  return asked.head;
}

TEST(Cli, OptionsOutrankTheEnvironment) {
  const std::map<std::string, std::string> variables{{"QUIRE_SERVER", "http://127.0.0.1:1"},
                                                     {"QUIRE_API_KEY", "of-the-environment"},
                                                     {"QUIRE_CA_FILE", "/nonexistent/ca.pem"},
                                                     {"QUIRE_DISK__PATH", "/nonexistent/b"}};
  for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"admin", "stats"},
                                             {"admin", "evict"},
                                             {"admin", "drain"},
                                             {"documents", "list"},
                                             {"documents", "get", "a"},
                                             {"documents", "delete", "a"},
                                             {"query", "Who?"}}) {
    SCOPED_TRACE(command.front() + " " + command.back());
    std::vector<std::string> line{QUIRE_BINARY};
    line.insert(line.end(), command.begin(), command.end());
    const std::string given = head_sent_by(line, {"--key", "of-the-option"});
    EXPECT_NE(given.find("Bearer of-the-option\r\n"), std::string::npos) << given;
    EXPECT_NE(head_sent_by(line, {}).find("Bearer of-the-environment\r\n"), std::string::npos);
  }
  for (const std::string command : {"stats", "verify", "gc", "upgrade", "repair"}) {
    const auto r = run_process({QUIRE_BINARY, "store", command, "--path", "/nonexistent/a"});
    EXPECT_EQ(r.exit_code, 1) << command;
    EXPECT_NE(r.err.find("/nonexistent/a"), std::string::npos) << r.err;
    EXPECT_NE(run_process({QUIRE_BINARY, "store", command}).err.find("/nonexistent/b"),
              std::string::npos);
  }
  for (const auto& [name, value] : variables) ::unsetenv(name.c_str());
}

TEST(Cli, ATemporaryFolderThatCannotBeUsedIsNamed) {
  for (const std::string command : {"generate", "fidelity"}) {
    const auto r = run_process(
        {"/usr/bin/env", "TMPDIR=/nonexistent/temporary", QUIRE_BINARY, command});
    EXPECT_EQ(r.exit_code, 1) << command << r.out;
    EXPECT_NE(r.err.find("'/nonexistent/temporary' (TMPDIR): No such file"), std::string::npos)
        << command << r.err;
  }
}

TEST(Cli, AQuestionAboutDocumentsCarriesTheirAffinity) {
  const std::vector<std::string> query{QUIRE_BINARY, "query", "Who?"}, ids{"a", "b"};
  const std::string named = std::string(kAffinityHeader) + ": ";
  for (const auto& more : std::vector<std::vector<std::string>>{{}, {"--json"}, {"--plan"}}) {
    std::vector<std::string> arguments = more;
    arguments.insert(arguments.end(), {"-d", "b,a"});
    EXPECT_NE(head_sent_by(query, arguments).find(named + affinity_of("default", ids)),
              std::string::npos);
    arguments.insert(arguments.end(), {"--namespace", "team-a"});
    EXPECT_NE(head_sent_by(query, arguments).find(named + affinity_of("team-a", ids)),
              std::string::npos);
  }
  const std::string without = head_sent_by(query, {});
  EXPECT_NE(without.find("POST /v1/query"), std::string::npos);
  EXPECT_EQ(without.find(named), std::string::npos);
}

TEST(Cli, WhatIsNoQuireServiceIsSaidAndNoCrash) {
  for (const std::string body : {"[1,2]", R"({"data":[]})", R"({"data":{}})"}) {
    for (const char* words : {"documents list", "admin verify"}) {
      std::istringstream in(words);
      std::vector<std::string> command{QUIRE_BINARY};
      for (std::string word; in >> word;) command.push_back(word);
      const Asked asked = ask_once(command, {},
                                   "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                                   "Content-Length: " +
                                       std::to_string(body.size()) + "\r\n\r\n" + body);
      EXPECT_EQ(asked.result.exit_code, 1) << words << " " << body;
      EXPECT_NE(asked.result.err.find("Quire service"), std::string::npos) << asked.result.err;
    }
  }
}

TEST(Cli, AnAnswerThatCannotBeWrittenIsAFailure) {
  const std::string full = std::string(QUIRE_BINARY) + " version >/dev/full";
  const auto r = run_process({"/bin/sh", "-c", full});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("standard output"), std::string::npos) << r.err;
  // Who stops reading, as head does, gets no message.
  const auto head = run_process(
      {"/bin/sh", "-c", std::string(QUIRE_BINARY) + " serve --print-config | head -c 1"});
  EXPECT_EQ(head.err, "");
  EXPECT_EQ(run_process({QUIRE_BINARY, "plan-capacity", "--trace", "x", "--remote", "0"}).exit_code,
            1);
}

TEST(Cli, AWrongCommandLineIsTwoAndHelpIsZero) {
  for (const std::vector<std::string>& args : {std::vector<std::string>{},
                                               {"nonsense"},
                                               {"ingest"},
                                               {"version", "--no-such-flag"},
                                               {"query", "q", "--temperature", "nan"},
                                               {"chat", "--temperature", "inf"},
                                               {"retrieve", "q", "--min-score", "nan"},
                                               {"retrieve", "q", "--links", "nan"}}) {
    std::vector<std::string> line{QUIRE_BINARY};
    line.insert(line.end(), args.begin(), args.end());
    const auto r = run_process(line);
    EXPECT_EQ(r.exit_code, 2) << r.out << r.err;
    EXPECT_NE(r.err.find("--help"), std::string::npos) << r.err;
  }
  const auto near = run_process({QUIRE_BINARY, "ingets", "x"});
  EXPECT_NE(near.err.find("did you mean 'quire ingest'"), std::string::npos) << near.err;
  for (const std::string flag : {"--help", "--version"})
    EXPECT_EQ(run_process({QUIRE_BINARY, flag}).exit_code, 0);
}

TEST(Cli, AStoreThatIsNotThereIsNotMade) {
  TempFolder folder;
  for (const std::string command : {"verify", "gc", "upgrade", "stats"}) {
    const auto r = run_process({QUIRE_BINARY, "store", command, "-p", folder.path().string()});
    EXPECT_EQ(r.exit_code, 1) << command << r.out;
    EXPECT_NE(r.err.find("there is no store at"), std::string::npos) << r.err;
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  // Neither is one that cannot be looked at taken for one that is missing.
  const auto r = run_process({QUIRE_BINARY, "store", "stats", "-p", std::string(300, 'x')});
  EXPECT_EQ(r.exit_code, 1) << r.out;
  EXPECT_NE(r.err.find("cannot look into"), std::string::npos) << r.err;
  EXPECT_EQ(r.err.find("there is no store"), std::string::npos) << r.err;
}

TEST(Cli, TheManualHasTheUsageOfEachCommand) {
  const auto r = run_process({QUIRE_BINARY, "completion", "man"});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  for (const auto* usage : {"Usage: quire [OPTIONS]", "Usage: quire serve [OPTIONS]",
                            "Usage: quire admin stats [OPTIONS]"})
    EXPECT_NE(r.out.find(usage), std::string::npos) << usage;
}

TEST(Cli, AnUnknownInstructionSetIsSaidAndPassedOver) {
  const auto r = run_process({"/usr/bin/env", "QUIRE_MAX_ISA=foo", QUIRE_BINARY, "--version"});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NE(r.err.find("QUIRE_MAX_ISA is ignored"), std::string::npos) << r.err;
}

TEST(Cli, AnErrorAtStartIsSaidOnce) {
  TempFolder folder;
  const std::string none = (folder.path() / "no-model").string();
  const auto start = [&](const std::string& format) {
    return run_process({QUIRE_BINARY, "serve", "--server.port=0", "--model.path=" + none,
                        "--disk.path=" + (folder.path() / "store").string(),
                        "--log.format=" + format});
  };
  const auto times = [&](const std::string& text) {
    int n = 0;
    for (auto at = text.find(none); at != std::string::npos; at = text.find(none, at + 1)) ++n;
    return n;
  };
  auto r = start("text");
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_EQ(times(r.err), 1) << r.err;
  EXPECT_NE(r.err.find("\nquire: "), std::string::npos) << r.err;
  for (const char* format : {"json", "auto"}) {
    r = start(format);
    EXPECT_EQ(r.exit_code, 1);
    EXPECT_EQ(times(r.err), 1) << r.err;
    EXPECT_NE(r.err.find(R"("msg":"the service cannot start")"), std::string::npos) << r.err;
    EXPECT_EQ(r.err.find("\nquire: "), std::string::npos) << r.err;
  }
}

TEST(Cli, IngestQueryDocuments) {
  TempFolder folder;
  ServiceProcess service;
  service.start(folder.path() / "store");
  const std::string server = "http://127.0.0.1:" + std::to_string(service.port());
  std::ofstream(folder.path() / "my notes.txt") << sample_text(3, 80);
  std::ofstream(folder.path() / "plan.md") << "# Plan\n\nBuild the bridge.\n";
  std::ofstream(folder.path() / "more.jsonl")
      << R"({"id":"one","text":"First line."})"
      << "\n"
      << R"({"id":"two","text":"Second line.","metadata":{"k":1}})"
      << "\n";
  auto r = run_process(
      {QUIRE_BINARY, "ingest", "--server", server, (folder.path() / "my notes.txt").string(),
       (folder.path() / "plan.md").string(), (folder.path() / "more.jsonl").string()});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NE(r.out.find("created   my-notes.txt~"), std::string::npos) << r.out;
  r = run_process({QUIRE_BINARY, "documents", "list", "--server", server});
  for (const auto* id : {"my-notes.txt~", "plan.md", "one", "two"})
    EXPECT_NE(r.out.find(id), std::string::npos) << id << r.out;
  r = run_process({QUIRE_BINARY, "query", "--server", server, "-d", "one,two", "--max-tokens", "4",
                   "Which line?"});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NE(r.err.find("prompt tokens"), std::string::npos) << r.err;
  r = run_process({QUIRE_BINARY, "query", "--server", server, "--namespace", "empty",
                   "--max-tokens", "4", "Which line?"});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NE(r.err.find("no document was used"), std::string::npos) << r.err;
  r = run_process({QUIRE_BINARY, "query", "--server", server, "--no-documents", "--max-tokens", "1",
                   "Which line?"});
  EXPECT_NE(r.err.find("the answer was cut off"), std::string::npos) << r.err;
  EXPECT_EQ(r.err.find("no document was used"), std::string::npos) << r.err;
  r = run_process({QUIRE_BINARY, "query", "--server", server, "-d", "one", "--json", "--max-tokens",
                   "4", "Which line?"});
  EXPECT_GT(int_at(parse(r.out), "usage.prompt_tokens"), 0);
  // The question may follow the documents directly, because -d takes one word.
  r = run_process({QUIRE_BINARY, "query", "--server", server, "--max-tokens", "4", "-d", "one",
                   "-d", "two", "Which line?"});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  r = run_process({QUIRE_BINARY, "query", "--server", server, "-d", "nobody", "Which line?"});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("nobody"), std::string::npos) << r.err;
  r = run_process({QUIRE_BINARY, "documents", "get", "--content", "--server", server, "two"});
  EXPECT_EQ(r.out, "Second line.\n");
  r = run_process({QUIRE_BINARY, "documents", "delete", "--server", server, "two", "three"});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.out.find("deleted two"), std::string::npos);
  r = run_process({QUIRE_BINARY, "store", "stats", "--path", (folder.path() / "store").string()});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(service.stop(), 0);
  r = run_process({QUIRE_BINARY, "store", "verify", "--path", (folder.path() / "store").string()});
  EXPECT_EQ(r.exit_code, 0) << r.out << r.err;
  r = run_process({QUIRE_BINARY, "store", "gc", "--path", (folder.path() / "store").string()});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  r = run_process({QUIRE_BINARY, "store", "repair", "--path", (folder.path() / "store").string()});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NE(r.out.find("no damage was found, and nothing was changed"), std::string::npos) << r.out;
  r = run_process({QUIRE_BINARY, "query", "--server", server, "q"});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("quire serve"), std::string::npos) << "says how to start one: " << r.err;
}

TEST(Cli, TextsOfDocumentsDoNotDriveTheTerminal) {
  TempFolder folder;
  ServiceProcess service;
  service.start(folder.path() / "store");
  const std::string server = "http://127.0.0.1:" + std::to_string(service.port());
  int status = 0;
  (void)service.json("POST", "/v1/documents?wait=true",
                     R"({"id":"d","title":"A\u001b]0;x\u0007\nB",)"
                     R"("text":"# H\u001b[2J\n\nThe old mill \u009b31m turns."})",
                     {}, &status);
  ASSERT_EQ(status, 200);
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"documents", "list"},
        {"retrieve", "mill"},
        {"retrieve", "mill", "--full"},
        {"query", "-d", "d", "--max-tokens", "4", "Which mill?"}}) {
    std::vector<std::string> line = {QUIRE_BINARY};
    line.insert(line.end(), words.begin(), words.end());
    line.insert(line.end(), {"--server", server});
    const auto r = run_process(line);
    EXPECT_EQ(r.exit_code, 0) << r.err;
    for (const char* control : {"\x1b", "\x07", "\xc2\x9b"})
      EXPECT_EQ((r.out + r.err).find(control), std::string::npos) << words[0] << r.out << r.err;
  }
  const auto listed = run_process({QUIRE_BINARY, "documents", "list", "--server", server});
  EXPECT_NE(listed.out.find("A\uFFFD]0;x\uFFFD B\n"), std::string::npos) << listed.out;
  EXPECT_EQ(service.stop(), 0);
}

TEST(Cli, ChatIsAConversationAndExplainSaysWhy) {
  TempFolder folder;
  ServiceProcess service;
  service.start(folder.path() / "store");
  const std::string server = "http://127.0.0.1:" + std::to_string(service.port());
  auto r = run_process({QUIRE_BINARY, "explain", "--server", server});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("asked nothing"), std::string::npos) << r.err;
  std::ofstream(folder.path() / "alba.txt") << sample_text(3, 400);
  std::ofstream(folder.path() / "corva.txt") << sample_text(4, 60);
  r = run_process({QUIRE_BINARY, "ingest", "--server", server, folder.path() / "alba.txt",
                   folder.path() / "corva.txt"});
  ASSERT_EQ(r.exit_code, 0) << r.err;

  const std::vector<std::string> chat = {QUIRE_BINARY,   "chat", "--server", server,
                                         "--max-tokens", "8",    "-s",       "reuse"};
  r = run_process(
      chat,
      "/why\n/documents\n/use alba.txt, corva.txt\nWho is the mayor?\n/why\n/use nobody\n"
      "\"\"\"And\nthe bridge?\"\"\"\n/nonsense\n/help\n/exit\nnever asked\n");
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NE(r.err.find("Nothing was asked yet"), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("tokens  corva.txt"), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("Strategy  reuse"), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("there is no document 'nobody'"), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("no command /nonsense"), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("/clear"), std::string::npos) << "the help: " << r.err;

  // At a terminal the arrow key brings the line before back.
  r = run_process({"/usr/bin/script", "--quiet", "--return", "--command",
                   std::string(QUIRE_BINARY) + " chat --server " + server, "/dev/null"},
                  "/nonsense\n\x1b[A\n/exit\n");
  EXPECT_EQ(r.exit_code, 0) << r.out << r.err;
  const auto first = r.out.find("no command /nonsense");
  ASSERT_NE(first, std::string::npos) << r.out;
  EXPECT_NE(r.out.find("no command /nonsense", first + 1), std::string::npos) << r.out;

  // Both turns were asked over both documents, and the second one holds the first.
  const auto queries = service.json("GET", "/v1/queries");
  ASSERT_EQ(at(queries, "data").as_array().size(), 2u);
  EXPECT_EQ(at(queries, "data.0.documents").as_array().size(), 2u);
  EXPECT_GT(int_at(queries, "data.0.usage.prompt_tokens"),
            int_at(queries, "data.1.usage.prompt_tokens"));

  r = run_process({QUIRE_BINARY, "explain", "--server", server, text_at(queries, "data.1.id")});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NE(r.out.find(text_at(queries, "data.1.id")), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("\n  ####"), std::string::npos) << "a strip of reused blocks: " << r.out;
  EXPECT_NE(r.out.find("prefill"), std::string::npos) << r.out;
  r = run_process({QUIRE_BINARY, "explain", "--server", server, "--json"});
  EXPECT_EQ(text_at(parse(r.out), "id"), text_at(queries, "data.0.id"));
  r = run_process({QUIRE_BINARY, "explain", "--server", server, "qry_gone"});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("qry_gone"), std::string::npos) << r.err;

  // A question that cannot be answered is an error, and the conversation goes on.
  r = run_process({QUIRE_BINARY, "chat", "--server", server, "--max-tokens", "4", "-d", "nobody"},
                  "Who?\n/all\nWho is the mayor?\n");
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("nobody"), std::string::npos) << r.err;
  EXPECT_EQ(at(service.json("GET", "/v1/queries"), "data").as_array().size(), 3u);
}

TEST(Cli, BenchMeasuresEachWorkloadAndLeavesNothingBehind) {
  TempFolder folder;
  ServiceProcess service;
  service.start(folder.path() / "store");
  const std::string server = "http://127.0.0.1:" + std::to_string(service.port());
  const auto bench = [&](std::vector<std::string> args) {
    std::vector<std::string> line{QUIRE_BINARY, "bench"};
    line.insert(line.end(), args.begin(), args.end());
    line.insert(line.end(), {"--server", server, "--words", "60", "--max-tokens", "2"});
    return run_process(line);
  };
  auto r = bench(
      {"long-doc", "--documents", "2", "--requests", "4", "-s", "reuse", "--compare", "--json"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  auto report = parse(r.out);
  EXPECT_EQ(int_at(report, "asked"), 4);
  EXPECT_EQ(int_at(report, "runs.0.requests"), 4);
  EXPECT_EQ(text_at(report, "runs.1.strategy"), "recompute");
  EXPECT_GT(at(report, "runs.0.hit_ratio").to_number<double>(), 0.5) << r.out;
  EXPECT_EQ(at(report, "runs.1.hit_ratio").to_number<double>(), 0) << r.out;
  EXPECT_GT(at(report, "runs.0.ttft_p50_ms").to_number<double>(), 0);
  r = bench({"permutations", "--documents", "3", "--requests", "3", "-c", "2", "--json"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(int_at(parse(r.out), "runs.0.requests"), 3);
  r = bench({"chat", "--users", "2", "--rounds", "2"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NE(r.out.find("ttft_p99_ms"), std::string::npos) << r.out;
  EXPECT_TRUE(at(service.json("GET", "/v1/documents"), "data").as_array().empty());
  // Documents that are there already are no part of a conversation.
  const auto prompt_tokens = [&] {
    const auto chat = bench({"chat", "--users", "1", "--rounds", "1", "--json"});
    EXPECT_EQ(chat.exit_code, 0) << chat.err;
    return int_at(parse(chat.out), "runs.0.prompt_tokens");
  };
  const auto alone = prompt_tokens();
  int status = 0;
  (void)service.json("POST", "/v1/documents?wait=true",
                     R"({"id":"d","text":"What is known of the harbour? I am guest of the mill."})",
                     {}, &status);
  EXPECT_EQ(status, 200);
  EXPECT_EQ(prompt_tokens(), alone);
  (void)service.json("DELETE", "/v1/documents/d", {}, {}, &status);
  EXPECT_EQ(status, 200);

  r = bench({"long-doc", "-s", "nonsense"});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("nonsense"), std::string::npos) << r.err;
  EXPECT_TRUE(at(service.json("GET", "/v1/documents"), "data").as_array().empty());
  EXPECT_EQ(bench({"long-doc", "--requests", "0"}).exit_code, 2);
  EXPECT_EQ(service.stop(), 0);
  for (const auto* workload : {"chat", "long-doc"}) {
    r = bench({workload});
    EXPECT_EQ(r.exit_code, 1);
    EXPECT_NE(r.err.find(server.substr(7)), std::string::npos) << r.err;
    EXPECT_EQ(r.err.find("could not be deleted"), std::string::npos) << r.err;
  }
}

/// Returns the last lines of a log that tell contexts.
std::string last_with_contexts(const std::string& log, std::size_t number) {
  std::vector<std::string> lines;
  std::istringstream in(log);
  for (std::string line; std::getline(in, line);)
    if (line.find("\"contexts\":") != std::string::npos) lines.push_back(line);
  std::string out;
  for (std::size_t i = lines.size() - std::min(number, lines.size()); i < lines.size(); ++i)
    out += lines[i] + "\n";
  return out;
}

TEST(Cli, PlanCapacityFromMeasuredRatesAndTheLog) {
  TempFolder folder;
  const std::string rates = (folder.path() / "rates.json").string();
  ServiceProcess service;
  service.start(folder.path() / "store", {"--log.contexts=true", "--log.format=json"});
  const std::string server = "http://127.0.0.1:" + std::to_string(service.port());
  auto r = run_process({QUIRE_BINARY, "bench", "rates", "--server", server, "--words", "40,160",
                        "--repeats", "2", "--answers", "1,2", "--answer-tokens", "4", "--beside",
                        server, "--host-seconds", "1", "-o", rates});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_TRUE(at(service.json("GET", "/v1/documents"), "data").as_array().empty());
  for (const std::string id : {"a", "b"})
    ASSERT_EQ(service
                  .call("POST", "/v1/documents?wait=true",
                        R"({"id":")" + id + R"(","text":)" +
                            quoted(sample_text(static_cast<unsigned>(id[0]), 100)) + "}")
                  .status,
              200);
  for (const std::string ids : {R"(["a"])", R"(["a","b"])", R"(["b"])"})
    ASSERT_EQ(service
                  .call("POST", "/v1/query",
                        R"({"query":"What is it?","max_tokens":2,"document_ids":)" + ids + "}")
                  .status,
              200);
  EXPECT_EQ(service.stop(), 0);
  const std::string log = (folder.path() / "log").string(),
                    trace = (folder.path() / "trace.jsonl").string();
  // What was measured was logged too, so that the last lines are taken.
  std::ofstream(log) << last_with_contexts(service.log(), 3);
  r = run_process({QUIRE_BINARY, "plan-capacity", "--trace", log, "--convert", trace});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  std::ifstream lines(trace);
  std::vector<boost::json::value> questions;
  for (std::string line; std::getline(lines, line);) questions.push_back(parse(line));
  ASSERT_EQ(questions.size(), 3u);
  EXPECT_EQ(at(questions[0], "documents").as_array().size(), 1u);
  ASSERT_EQ(at(questions[1], "documents").as_array().size(), 2u);
  EXPECT_EQ(at(questions[0], "documents.0.key"), at(questions[1], "documents.0.key"));
  EXPECT_EQ(text_at(questions[1], "affinity"),
            affinity_of("default", std::vector<std::string>{"b", "a"}));
  EXPECT_EQ(int_at(questions[1], "answer_tokens"), 2);

  const std::vector<std::string> plan{QUIRE_BINARY, "plan-capacity", "--trace",
                                      trace,        "--rates",       rates};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> line = plan;
    line.insert(line.end(), more.begin(), more.end());
    return run_process(line);
  };
  r = with({"--replicas", "1,2", "--ttft-p95", "1h", "--json"});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("--ttft-p95 is '1h'"), std::string::npos) << r.err;
  // Slowly, so that what one question computes is there for the next.
  r = with({"--replicas", "2,1", "--ttft-p95", "100s", "--remote", "1GiB", "--speed", "0.001",
            "--json"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  const auto report = parse(r.out);
  EXPECT_EQ(int_at(report, "smallest"), 1);
  EXPECT_EQ(int_at(report, "rows.0.replicas"), 1);
  EXPECT_EQ(int_at(report, "rows.1.requests"), 3);
  EXPECT_GT(at(report, "rows.0.hits.dram").to_number<double>(), 0.2) << r.out;
  r = with({"--replicas", "1", "--ttft-p95", "0.000001s"});
  EXPECT_EQ(r.exit_code, 1) << r.out;
  EXPECT_NE(r.err.find("reaches --ttft-p95 0.000001s"), std::string::npos) << r.err;
  EXPECT_NE(r.out.find("ttft p50"), std::string::npos) << "what was found is told all the same";
  r = with({"--copies", "3"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NE(r.out.find("3 such tenants"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("ttft p50"), std::string::npos) << r.out;

  std::ofstream(trace, std::ios::app) << "{\"time\":1}\n";
  r = with({});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("trace.jsonl: line 4: question_tokens"), std::string::npos) << r.err;
  EXPECT_EQ(with({"--disk", "much"}).exit_code, 1);
  EXPECT_EQ(with({"--replicas", "0"}).exit_code, 2);
  EXPECT_EQ(run_process({QUIRE_BINARY, "plan-capacity", "--trace", log}).exit_code, 1);
}

TEST(Cli, ModelCalibrate) {
  TempFolder folder;
  const std::string store = (folder.path() / "store").string();
  std::ofstream file(folder.path() / "long.jsonl");
  for (unsigned i = 0; i < 4; ++i)
    file << boost::json::serialize(boost::json::object{{"text", sample_text(i, 150)}}) << "\n";
  file.close();
  auto r = run_process({QUIRE_BINARY, "model", "calibrate", "--path", store, "--documents",
                        (folder.path() / "long.jsonl").string()});
  EXPECT_NE(r.out.find("there is none in " + store), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("scores"), std::string::npos) << r.out << r.err;
  EXPECT_NE(r.out.find("layers"), std::string::npos) << r.out << r.err;
  // The model decides whether these documents have such layers. A refusal gives its reason and
  // keeps the default.
  EXPECT_EQ(r.exit_code == 0, r.err.empty()) << r.err;
  std::ofstream(folder.path() / "bad.jsonl") << "{\"title\":\"a\"}\n";
  r = run_process({QUIRE_BINARY, "model", "calibrate", "--path", store, "--documents",
                   (folder.path() / "bad.jsonl").string()});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_EQ(r.out.find("there is none in"), std::string::npos) << r.out;
  EXPECT_NE(r.err.find("bad.jsonl, line 1"), std::string::npos) << r.err;
}

TEST(Cli, ModelCalibrateSaysThatEarlierHeadsAreGone) {
  TempFolder folder;
  const std::string store = (folder.path() / "store").string(),
                    texts = (folder.path() / "short.jsonl").string();
  // The embedded model has such heads, and its sample enough texts to hide sentences in.
  auto r = run_process({QUIRE_BINARY, "model", "calibrate", "--path", store});
  ASSERT_EQ(r.exit_code, 0) << r.out << r.err;
  EXPECT_NE(r.out.find("kept         in " + store), std::string::npos) << r.out;
  EXPECT_EQ(r.out.find("removed"), std::string::npos) << r.out;
  std::ofstream(texts) << "{\"text\":\"Too short to hide a sentence in.\"}\n";
  for (const bool again : {false, true}) {
    r = run_process({QUIRE_BINARY, "model", "calibrate", "--path", store, "--documents", texts});
    EXPECT_EQ(r.exit_code, 1);
    EXPECT_EQ(r.out.find("removed      from " + store) != std::string::npos, !again) << r.out;
    EXPECT_NE(r.err.find("without heads"), std::string::npos) << r.err;
  }
}

TEST(Cli, ModelCalibrateCitations) {
  TempFolder folder;
  const std::string store = (folder.path() / "store").string(),
                    questions = (folder.path() / "questions.jsonl").string();
  // Each question is answered by the document that has hardly a word of it, by its title.
  const auto write = [&](unsigned count) {
    std::ofstream file(questions);
    for (unsigned i = 0; i < count; ++i) {
      const std::string name = "N" + std::string(1, static_cast<char>('a' + i % 26)) + "kor";
      file << boost::json::serialize(boost::json::object{
                  {"documents",
                   boost::json::array{
                       boost::json::object{{"id", "a"},
                                           {"title", name},
                                           {"text", "The answer stands here. It is blue."}},
                       boost::json::object{{"id", "b"},
                                           {"title", "Letters"},
                                           {"text", "What is the colour of the gate of " + name +
                                                        "? Nobody knows."}}}},
                  {"question", "What is the colour of the gate of " + name + "?"},
                  {"answers", boost::json::array{"blue"}},
                  {"kind", "colour"},
                  {"supporting_ids", boost::json::array{"a"}},
                  {"support",
                   boost::json::array{boost::json::object{{"id", "a"}, {"text", "It is blue."}}}}})
           << "\n";
    }
  };
  const auto calibrate = [&] {
    return run_process(
        {QUIRE_BINARY, "model", "calibrate", "--path", store, "--questions", questions});
  };
  write(24);
  auto r = calibrate();
  ASSERT_EQ(r.exit_code, 0) << r.out << r.err;
  EXPECT_NE(r.out.find("confidence fitted to 24 questions"), std::string::npos) << r.out << r.err;
  r = run_process({QUIRE_BINARY, "model", "card", "--path", store, "-o", "-"});
  EXPECT_NE(r.out.find("\"citation_confidence\":\"1 "), std::string::npos) << r.out << r.err;

  // Too few to learn from: what an earlier calibration left is gone, and the reason is said.
  write(3);
  r = calibrate();
  EXPECT_NE(r.out.find("confidence as built in: 3 questions"), std::string::npos) << r.out << r.err;
  r = run_process({QUIRE_BINARY, "model", "card", "--path", store, "-o", "-"});
  EXPECT_EQ(r.out.find("citation_confidence"), std::string::npos) << r.out;
}

TEST(Cli, ModelTokenizeGenerateVersion) {
  const std::string model = std::string(QUIRE_SOURCE_DIR) + "/models/demo";
  auto r = run_process({QUIRE_BINARY, "model", "info", "--model", model});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NE(r.out.find("llama"), std::string::npos);
  const auto with = run_process({QUIRE_BINARY, "tokenize", "--model", model}, "The old bridge");
  const auto without = run_process({QUIRE_BINARY, "tokenize", "--model", model, "--no-special"},
                                   "The old bridge");
  EXPECT_EQ(parse(with.out).as_array().size(), parse(without.out).as_array().size() + 1)
      << with.out << without.out;
  r = run_process({QUIRE_BINARY, "generate", "--model", model, "--prompt", "The city of",
                   "--max-tokens", "6", "--json", "--ignore-eos"});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  const auto g = parse(r.out);
  EXPECT_EQ(at(g, "ids").as_array().size(), 6u);
  r = run_process(
      {QUIRE_BINARY, "generate", "--model", model, "--max-tokens", "6", "--ids", "--ignore-eos"},
      "The city of");
  EXPECT_EQ(boost::json::serialize(parse(r.out)), boost::json::serialize(at(g, "ids")));
  r = run_process({QUIRE_BINARY, "version"});
  EXPECT_EQ(r.out.substr(0, 6), "quire ");
  EXPECT_NE(r.out.find("\nbackend cpu ("), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("); CUDA: "), std::string::npos) << r.out;
  EXPECT_NE(run_process({QUIRE_BINARY}).exit_code, 0);
  EXPECT_NE(run_process({QUIRE_BINARY, "frobnicate"}).exit_code, 0);
  r = run_process({QUIRE_BINARY, "key", "--name", "a", "--scopes", "read,query"});
  EXPECT_EQ(r.exit_code, 0);
  EXPECT_NE(r.out.find("sha256 = "), std::string::npos);
  EXPECT_NE(r.err.find("qk_"), std::string::npos);
}

TEST(Cli, CudaIsRefusedWithTheFixWhereNoGpuComputes) {
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{"--backend", "cuda"}, {"--model.backend=cuda"}}) {
    std::vector<std::string> args{QUIRE_BINARY, "serve", "--check-config"};
    args.insert(args.end(), flags.begin(), flags.end());
    const auto r = run_process(args);
    EXPECT_EQ(r.exit_code, 1) << r.out;
    EXPECT_NE(r.err.find("model.backend is 'cuda', but "), std::string::npos) << r.err;
    EXPECT_NE(r.err.find("use cpu or auto"), std::string::npos) << r.err;
  }
  for (const char* several : {"--model.tensor_parallel=2", "--model.tensor_parallel=0"}) {
    const auto r = run_process({QUIRE_BINARY, "serve", "--check-config", several});
    EXPECT_NE(r.exit_code, 0) << r.out;
    EXPECT_NE(r.err.find("model.tensor_parallel"), std::string::npos) << r.err;
  }
  const auto split = run_process(
      {QUIRE_BINARY, "serve", "--check-config", "--model.split_kv=true"});
  EXPECT_NE(split.exit_code, 0) << split.out;
  EXPECT_NE(split.err.find("model.split_kv cuts KV over"), std::string::npos) << split.err;
  EXPECT_EQ(run_process({QUIRE_BINARY, "serve", "--check-config", "--backend", "cpu"}).exit_code,
            0);
  EXPECT_EQ(run_process({QUIRE_BINARY, "serve", "--check-config", "--backend", "auto"}).exit_code,
            0);
  EXPECT_EQ(run_process({QUIRE_BINARY, "serve", "--check-config", "--backend", "gpu"}).exit_code,
            2);
}

TEST(Cli, CheckConfigReadsHowManyLayersTheDraftHas) {
  const std::string model = std::string(QUIRE_SOURCE_DIR) + "/models/demo";  // of six layers
  const auto check = [&](std::vector<std::string> settings) {
    settings.insert(settings.begin(), {QUIRE_BINARY, "serve", "--check-config", "-m", model});
    return run_process(settings);
  };
  const std::string draft = "--model.draft_path=" + model;
  EXPECT_EQ(check({draft, "--model.draft_layers=6"}).exit_code, 0);
  auto r = check({draft, "--model.draft_layers=7"});
  EXPECT_EQ(r.exit_code, 1) << r.out;
  EXPECT_NE(r.err.find("model.draft_layers: is 7"), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("has 6 layers"), std::string::npos) << r.err;
  r = check({"--model.draft_path=/does/not/exist"});
  EXPECT_EQ(r.exit_code, 1) << r.out;
  EXPECT_NE(r.err.find("model.draft_path"), std::string::npos) << r.err;
  r = check({"--model.retrieval_head_path=/does/not/exist"});
  EXPECT_EQ(r.exit_code, 1) << r.out;
  EXPECT_NE(r.err.find("model.retrieval_head_path"), std::string::npos) << r.err;
  r = check({"--model.draft_path=none", "--model.draft_document_kv=true"});
  EXPECT_EQ(r.exit_code, 1) << r.out;
  EXPECT_NE(r.err.find("model.draft_document_kv"), std::string::npos) << r.err;
}

}  // namespace
}  // namespace quire::testing
