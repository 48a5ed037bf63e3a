#include <CLI/CLI.hpp>
#include <cstdio>

#include "server/commands/client.h"
#include "server/commands/commands.h"
#include "server/commands/model_files/model_path.h"
#include "server/json/text.h"

namespace quire {
namespace json = boost::json;
namespace {

std::string text_of(const json::object& o, const char* key) {
  const auto* v = o.if_contains(key);
  if (!v || v->is_null()) return "-";
  return v->is_string() ? std::string(v->as_string()) : to_text(*v);
}

int list(const ClientFlags& flags, bool as_json) {
  std::string after;
  bool header = true;
  for (;;) {
    ClientRequest request;
    request.target = "/v1/documents?limit=100&order=asc" +
                     (after.empty() ? "" : "&after=" + percent_encode(after));
    const auto page = client_json(flags, std::move(request));
    if (!page.ok()) return complain(page.status());
    const auto& o = page->as_object();
    for (const auto& d : o.at("data").as_array()) {
      const auto& doc = d.as_object();
      if (as_json) {
        std::printf("%s\n", to_text(d).c_str());
        continue;
      }
      if (header)
        std::printf("%-40s %-10s %8s %7s %-9s %6s  %s\n", "ID", "STATUS", "TOKENS", "CHUNKS",
                    "CACHE", "HITS", "TITLE");
      header = false;
      std::printf("%-40s %-10s %8s %7s %-9s %6s  %s\n", text_of(doc, "id").c_str(),
                  text_of(doc, "status").c_str(), text_of(doc, "tokens").c_str(),
                  text_of(doc, "chunks").c_str(),
                  text_of(doc.at("cache").as_object(), "state").c_str(),
                  text_of(doc, "hits").c_str(), printable(text_of(doc, "title"), false).c_str());
    }
    if (!o.at("has_more").as_bool()) break;
    after = std::string(o.at("last_id").as_string());
  }
  if (header && !as_json) std::printf("no documents\n");
  return 0;
}

}  // namespace

void add_documents_command(CLI::App& app, CommandRun& run) {
  auto flags = std::make_shared<ClientFlags>();
  auto ids = std::make_shared<std::vector<std::string>>();
  auto as_json = std::make_shared<bool>(false);
  auto content = std::make_shared<bool>(false);
  auto* c = app.add_subcommand("documents", "List, show or delete documents of a running service");
  c->require_subcommand(1);
  auto* l = c->add_subcommand("list", "All documents");
  add_client_flags(*l, *flags);
  l->add_flag("--json", *as_json, "One JSON object a line");
  l->callback(
      [flags, as_json, &run] { run = [flags, as_json] { return list(*flags, *as_json); }; });
  auto* g = c->add_subcommand("get", "One document: its state, or its text");
  add_client_flags(*g, *flags);
  g->add_option("ID", *ids, "Document ids")->required();
  g->add_flag("--content", *content, "The stored text");
  g->callback([flags, ids, content, &run] {
    run = [flags, ids, content] {
      for (const auto& id : *ids) {
        ClientRequest request;
        request.target = "/v1/documents/" + percent_encode(id) + (*content ? "/content" : "");
        const auto reply = client_call(*flags, std::move(request));
        if (!reply.ok()) return complain(reply.status());
        // A text may hold zero bytes.
        std::fwrite(reply->body.data(), 1, reply->body.size(), stdout);
        if (!reply->body.ends_with('\n')) std::fputc('\n', stdout);
      }
      return 0;
    };
  });
  auto* d = c->add_subcommand("delete", "Delete documents");
  add_client_flags(*d, *flags);
  d->add_option("ID", *ids, "Document ids")->required();
  d->callback([flags, ids, &run] {
    run = [flags, ids] {
      int rc = 0;
      for (const auto& id : *ids) {
        ClientRequest request;
        request.method = "DELETE";
        request.target = "/v1/documents/" + percent_encode(id);
        const auto reply = client_call(*flags, std::move(request));
        if (!reply.ok())
          rc = complain(reply.status());
        else
          std::printf("deleted %s\n", id.c_str());
      }
      return rc;
    };
  });
}

}  // namespace quire
