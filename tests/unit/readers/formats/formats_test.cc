// Each format gives a clean text with its headings, whatever it is called, and a clear error
// otherwise.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>

#include "readers/formats/cell_number.h"
#include "readers/formats/format.h"
#include "tests/support/file_makers.h"

namespace quire {
namespace {

using ::testing::AllOf;
using testing::docx_of;
using testing::epub_of;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::zip_of;

Result<std::vector<ReadDocument>> read(const std::string& bytes, const std::string& name,
                                       const std::string& encoding = {}) {
  ReaderRequest request;
  request.name = name;
  request.encoding = encoding;
  const auto format = detect_format(bytes, name);
  if (!format.ok()) return format.status();
  return finish_documents((*format)->read(bytes, request), request);
}

ReadDocument one(const std::string& bytes, const std::string& name,
                 const std::string& encoding = {}) {
  auto result = read(bytes, name, encoding);
  EXPECT_TRUE(result.ok()) << result.status().to_string();
  if (!result.ok()) return {};
  EXPECT_EQ(result->size(), 1u);
  return (*result)[0];
}

/// The heading path that holds where `text` stands.
std::string heading_at(const ReadDocument& d, const std::string& text) {
  const auto at = d.text.find(text);
  EXPECT_NE(at, std::string::npos) << text << " in " << d.text;
  std::string out;
  for (const TextMark& mark : d.marks)
    if (mark.offset <= at) out = mark.heading;
  return out;
}

std::uint32_t page_at(const ReadDocument& d, const std::string& text) {
  const auto at = d.text.find(text);
  EXPECT_NE(at, std::string::npos) << text << " in " << d.text;
  std::uint32_t out = 0;
  for (const TextMark& mark : d.marks)
    if (mark.offset <= at) out = mark.page;
  return out;
}

TEST(TextReader, ReadsAnyEncodingAndDropsItsMark) {
  EXPECT_EQ(one("\xef\xbb\xbfHello", "a.txt").text, "Hello");
  EXPECT_EQ(one("caf\xc3\xa9", "a.txt").text, "café");
  EXPECT_EQ(one(std::string("\xff\xfeH\0\xe9\0", 6), "a.txt").text, "Hé");
  EXPECT_EQ(one(std::string("\xfe\xff\0H\0\xe9", 6), "a.txt").text, "Hé");
  EXPECT_EQ(one(std::string("P\0l\0a\0i\0n\0 \0t\0e\0x\0t\0", 20), "a.txt").text, "Plain text");
  EXPECT_EQ(one(std::string("\0P\0l\0a\0i\0n\0 \0t\0e\0x\0t", 20), "a.txt").text, "Plain text");
  EXPECT_EQ(one("d\xe9j\xe0 vu, tr\xe8s bien, caf\xe9 cr\xe8me \xe0 la carte", "a.txt").text,
            "déjà vu, très bien, café crème à la carte");
  EXPECT_EQ(one("\xe9", "a.txt", "cp437").text, "Θ");
  EXPECT_EQ(one("\x82\xb1\x82\xf1\x82\xc9\x82\xbf\x82\xcd", "a.txt", "shift_jis").text,
            "こんにちは");
  EXPECT_EQ(one("one\r\ntwo\rthree\n", "a.txt").text, "one\ntwo\nthree\n");
  EXPECT_EQ(read("x", "a.txt", "no-such-encoding").code(), Code::kInvalidArgument);
}

TEST(TextReader, AWrongByteDoesNotMakeUtf8AnotherEncoding) {
  const auto d = one(
      "Größe, Maß, Öl, Übung, ähnlich: 5 \xb0"
      "C",
      "a.txt");
  EXPECT_THAT(d.text, HasSubstr("Größe, Maß, Öl, Übung, ähnlich: 5 \xef\xbf\xbd"
                                "C"));
  ASSERT_FALSE(d.warnings.empty());
  EXPECT_THAT(d.warnings.back(), HasSubstr("1 characters are not valid UTF-8"));
}

TEST(TextReader, RefusesWhatIsNoText) {
  EXPECT_EQ(read("", "a.txt").code(), Code::kNotFound);
  EXPECT_EQ(read(" \n\t", "a.txt").code(), Code::kNotFound);
  std::string bytes;
  for (int i = 0; i < 4000; ++i) bytes += static_cast<char>(i * 37 % 251);
  EXPECT_EQ(read(bytes, "a.txt").code(), Code::kUnimplemented);
  EXPECT_EQ(read("\x89PNG\r\n", "a.txt").code(), Code::kUnimplemented);
  const auto d = one(
      "a long enough text with one NUL " + std::string(1, '\0') + std::string(200, 'x'), "a.txt");
  EXPECT_EQ(d.text.find('\0'), std::string::npos);
  ASSERT_EQ(d.warnings.size(), 1u);
  EXPECT_THAT(d.warnings[0], HasSubstr("NUL"));
}

TEST(HtmlReader, LeavesOutWhatIsNotTextAndKeepsHeadings) {
  const auto d = one(
      "<!doctype html><html><head><title>The page</title><style>p{}</style></head><body>"
      "<nav>Menu</nav><script>alert(1)</script><h1>Top</h1><p>First &amp; best.</p>"
      "<h2>Sub</h2><ul><li>one<li><p>two</p></ul><table><tr><th>A<th>B<tr><td>1<td>2</table>"
      "<pre>x\n  y</pre><div hidden>secret</div><form>search</form><p># not a heading</p>"
      "<footer>imprint</footer></body></html>",
      "page.html");
  EXPECT_EQ(d.title, "The page");
  EXPECT_TRUE(d.markdown);
  EXPECT_EQ(d.text,
            "# Top\n\nFirst & best.\n\n## Sub\n\n- one\n- two\n\nA | B\n1 | 2\n\n```\nx\n  y\n```"
            "\n\n\\# not a heading\n");
  EXPECT_EQ(heading_at(d, "First"), "Top");
  EXPECT_EQ(heading_at(d, "- two"), "Top > Sub");
}

TEST(HtmlReader, APageThatIsAFormIsRead) {
  std::string page =
      "<body><a href=#top>Skip</a><form id=aspnetForm><h1>Leave</h1><p>Twenty days.</p>"
      "<select><option>Bern<option>Basel</select><input value=x><button>Send</button>";
  for (int i = 0; i < 40; ++i) page += "<p>Rule " + std::to_string(i) + " of the handbook.</p>";
  const auto d = one("<html>" + page + "</form><p>end</p></body></html>", "page.aspx.html");
  EXPECT_THAT(d.text, HasSubstr("# Leave\n\nTwenty days.\n\nRule 0 of"));
  EXPECT_THAT(d.text, AllOf(HasSubstr("Rule 39"), HasSubstr("end"), Not(HasSubstr("Basel")),
                            Not(HasSubstr("Send"))));
}

TEST(HtmlReader, RowsOfATableKeepTheirCells) {
  const auto d = one(
      "<html><body><table><tr><td></td><th>2019</th><th>2020</th></tr>"
      "<tr><td><p>Revenue<br>(net)</p></td><td><p>5</p></td><td></td><td><p>7</p></td></tr>"
      "<tr><td>&nbsp;</td><td> </td></tr><tr><th>#</th><th>n</th></tr>"
      "<tr><td>Parts<ul><li>one</li><li>two</li></ul></td><td>3</td></tr></table>"
      "<table><tr><td>menu</td><td><h2>Layout</h2><p>First.</p><p>Second.</p></td></tr></table>"
      "</body></html>",
      "table.html");
  EXPECT_EQ(d.text,
            "| 2019 | 2020\nRevenue (net) | 5 | | 7\n\\# | n\nParts one; two | 3\nmenu\n\n"
            "## Layout\n\nFirst.\n\nSecond.\n");
}

TEST(HtmlReader, FormulasNumbersAndAnchorsAreWhatAReaderSees) {
  const auto d = one(
      "<html><body><h2>Setup<a class=headerlink href=#s>\xc2\xb6</a></h2>"
      "<p>So <math alttext=\"{\\displaystyle E=mc^{2}}\"><mi>E</mi></math> and "
      "<math><semantics><mi>a</mi><annotation encoding=\"application/x-tex\">a_1</annotation>"
      "</semantics></math> and <math><mi>x</mi><mo>+</mo><mi>y</mi></math>.</p>"
      "<ol><li>open</li><li>turn<ul><li>left</li></ul></li><li value=7>close</li></ol>"
      "<ol start=3><li>third</li></ol><p>&nbsp;</p><p>10&nbsp;km</p></body></html>",
      "page.html");
  EXPECT_EQ(d.text,
            "## Setup\n\nSo E=mc^{2} and a_1 and x+y.\n\n1. open\n2. turn\n- left\n7. close\n"
            "3. third\n\n10 km\n");
}

TEST(HtmlReader, UsesTheEncodingThatThePageDeclares) {
  const auto d = one("<html><head><meta charset=\"iso-8859-7\"></head><body>\xc1\xc2\xc3</body>",
                     "page.html");
  EXPECT_EQ(d.text, "ΑΒΓ\n");
  EXPECT_EQ(one("<html><body>x", "page.txt").text, "x\n") << "the content decides, not the name";
}

TEST(HtmlReader, ElementsThatAreLeftOpenLoseNothing) {
  std::string page = "<html><body>";
  for (int i = 0; i < 1000; ++i) page += "<font size=2>post " + std::to_string(i) + "<br>\n";
  EXPECT_THAT(one(page + "<p>last</p></body></html>", "mail.html").text,
              AllOf(HasSubstr("post 254"), HasSubstr("post 999"), HasSubstr("last")));
  std::string deep;
  for (int i = 0; i < 5000; ++i) deep += "<blockquote>";
  const auto refused = read(deep + "text", "deep.html");
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(), HasSubstr("levels"));
}

TEST(HtmlReader, EndlessNestingIsNoCrash) {
  std::string deep;
  for (int i = 0; i < 20'000; ++i) deep += "<div>";
  const auto result = read(deep + "text", "deep.html");
  if (result.ok()) {
    EXPECT_THAT((*result)[0].text, HasSubstr("text"));
  } else {
    EXPECT_FALSE(result.status().message().empty());
  }
}

TEST(MarkdownReader, KeepsTheTextAndFindsHeadings) {
  const auto d = one(
      "---\ntitle: \"From above\"\nauthor: Ada\ntags: [a]\n---\n\nTop\n===\n\nText.\n\n"
      "## Sub *two*\n\n```\n# no heading\n```\n\nLast.\n",
      "notes.md");
  EXPECT_EQ(d.title, "From above");
  EXPECT_EQ(d.metadata, (std::vector<std::pair<std::string, std::string>>{{"author", "Ada"}}));
  EXPECT_EQ(d.text.substr(0, 8), "Top\n===\n");
  EXPECT_EQ(heading_at(d, "Text."), "Top");
  EXPECT_EQ(heading_at(d, "Last."), "Top > Sub two");
  EXPECT_EQ(one("no heading", "my file.md").title, "my file");
  EXPECT_EQ(one("---\n\nA rule, not front matter.\n", "r.md").text.substr(0, 4), "---\n");
}

TEST(CsvReader, NamesTheColumnOfEveryValue) {
  const auto d = one("Name;City\n\"Ada \"\"L\"\"\";\"New\nYork\"\nBob;\n", "t.csv");
  EXPECT_EQ(d.text, "Name: Ada \"L\"; City: New York\nName: Bob\n");
  EXPECT_EQ(one("1,2\n3,4\n", "t.csv").text, "1; 2\n3; 4\n");
  EXPECT_EQ(one("a\tb\nx\ty\n", "t.tsv").text, "a: x; b: y\n");
  EXPECT_EQ(one(",name\n0,Ada\n1,Bob\n", "pandas.csv").text, "0; name: Ada\n1; name: Bob\n");
  EXPECT_EQ(one("Country,2019,2020\nFrance,12,13\n", "years.csv").text,
            "Country: France; 2019: 12; 2020: 13\n");
  EXPECT_EQ(one("Ada,1990\nBob,1991\n", "t.csv").text, "Ada; 1990\nBob; 1991\n");
  EXPECT_EQ(one("sep=;\na;b\n1,5;2\n", "excel.csv").text, "a: 1,5; b: 2\n");
}

TEST(DocxReader, ReadsHeadingsListsTablesAndPages) {
  const auto p = [](const std::string& text, const std::string& properties = {}) {
    return "<w:p><w:pPr>" + properties + "</w:pPr><w:r><w:t>" + text + "</w:t></w:r></w:p>";
  };
  const auto d = one(
      docx_of(p("Chapter", R"(<w:pStyle w:val="berschrift2"/>)") + p("Body text.") +
              p("item", "<w:numPr/>") + p("item two", "<w:numPr/>") + "<w:tbl><w:tr><w:tc>" +
              p("a") + "</w:tc><w:tc>" + p("b") + "</w:tc></w:tr></w:tbl>" +
              R"(<w:p><w:r><w:br w:type="page"/></w:r></w:p>)" + p("On page two.") +
              "<w:p><w:del><w:r><w:delText>gone</w:delText></w:r></w:del></w:p>"),
      "report.docx");
  EXPECT_EQ(d.title, "The title");
  EXPECT_EQ(d.text, "## Chapter\n\nBody text.\n\n- item\n- item two\n\na | b\n\nOn page two.\n");
  EXPECT_EQ(heading_at(d, "Body"), "Chapter");
  EXPECT_EQ(page_at(d, "Body"), 1u);
  EXPECT_EQ(page_at(d, "On page two"), 2u);
}

TEST(DocxReader, TablesAndTextBoxesKeepTheirPlaces) {
  const auto p = [](const std::string& text) {
    return "<w:p><w:r><w:t>" + text + "</w:t></w:r></w:p>";
  };
  const auto cell = [&](const std::string& text, int span = 1) {
    return "<w:tc><w:tcPr><w:gridSpan w:val=\"" + std::to_string(span) + "\"/></w:tcPr>" +
           (text.empty() ? "<w:p/>" : p(text)) + "</w:tc>";
  };
  const auto d = one(
      docx_of("<w:tbl><w:tr>" + cell("") + cell("2019", 2) + cell("2020") + "</w:tr>" +
              "<w:sdt><w:sdtContent><w:tr>" + cell("a") + cell("1") + cell("2") +
              "<w:sdt><w:sdtContent>" + cell("3") + "</w:sdtContent></w:sdt></w:tr>" +
              "</w:sdtContent></w:sdt></w:tbl><w:p><w:moveFrom><w:r><w:t>moved</w:t></w:r>" +
              "</w:moveFrom><w:r><w:t>Stays.</w:t><w:pict><w:txbxContent>" + p("Box one") +
              p("box two") + "</w:txbxContent></w:pict></w:r></w:p>"),
      "table.docx");
  EXPECT_EQ(d.text, "| 2019 | | 2020\na | 1 | 2 | 3\n\nStays.\nBox one\nbox two\n");
}

TEST(DocxReader, ADocumentWithoutATitleIsCalledByItsFirstHeading) {
  const std::string ns =
      R"(xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main")";
  const auto d = one(
      zip_of({{"word/document.xml",
               "<w:document " + ns +
                   "><w:body><w:p><w:pPr><w:outlineLvl w:val=\"0\"/></w:pPr><w:r><w:t>Leave "
                   "policy</w:t></w:r></w:p></w:body></w:document>"}}),
      "v3_final.docx");
  EXPECT_EQ(d.title, "Leave policy");
}

TEST(DocxReader, CountsAPageThatAuthorAndWordBothEndOnce) {
  const auto p = [](const std::string& runs) { return "<w:p><w:r>" + runs + "</w:r></w:p>"; };
  const std::string ended = R"(<w:br w:type="page"/>)", rendered = "<w:lastRenderedPageBreak/>";
  const auto d = one(
      docx_of(p("<w:t>One.</w:t>") + p(rendered + "<w:t>Two.</w:t>") + p(ended) +
              p(rendered + "<w:t>Three.</w:t>") + p(ended + rendered + "<w:t>Four.</w:t>") +
              p(ended) + p(ended) + p("<w:t>Six.</w:t>") + p(rendered + "<w:t>Seven.</w:t>")),
      "pages.docx");
  const std::pair<const char*, std::uint32_t> pages[] = {{"One", 1},  {"Two", 2}, {"Three", 3},
                                                         {"Four", 4}, {"Six", 6}, {"Seven", 7}};
  for (const auto& [text, page] : pages) EXPECT_EQ(page_at(d, text), page) << text;
  EXPECT_EQ(page_at(one(docx_of(p("<w:t>Text.</w:t>")), "one.docx"), "Text"), 0u);
}

TEST(OdtReader, ReadsHeadingsAndParagraphs) {
  const auto d = one(zip_of({{"mimetype", "application/vnd.oasis.opendocument.text"},
                             {"META-INF/manifest.xml", "<m/>"},
                             {"content.xml",
                              R"(<o xmlns:office="o" xmlns:text="t"><office:text>
                  <text:h text:outline-level="1">Top</text:h>
                  <text:p>One<text:s text:c="2"/>two<text:tab/>three.</text:p>
                  <text:list><text:list-item><text:p>a</text:p></text:list-item></text:list>
                  </office:text></o>)"}}),
                     "text.odt");
  EXPECT_EQ(d.text, "# Top\n\nOne  two\tthree.\n\n- a\n");
  EXPECT_EQ(page_at(d, "One"), 0u);
  const auto paged = one(zip_of({{"META-INF/manifest.xml", "<m/>"},
                                 {"content.xml",
                                  R"(<o xmlns:office="o" xmlns:text="t"><office:text>
                  <text:p>First.</text:p><text:soft-page-break/><text:p>Second.</text:p>
                  </office:text></o>)"}}),
                         "paged.odt");
  EXPECT_EQ(page_at(paged, "First"), 1u);
  EXPECT_EQ(page_at(paged, "Second"), 2u);
  const auto table = one(zip_of({{"META-INF/manifest.xml", "<m/>"},
                                 {"content.xml",
                                  R"(<o xmlns:office="o" xmlns:text="t"><office:text>
                  <table:table><table:table-row>
                  <table:table-cell table:number-columns-repeated="2"/><table:table-cell>
                  <text:p>b</text:p><text:p>c</text:p></table:table-cell></table:table-row>
                  <table:table-row><table:table-cell><text:p>1</text:p></table:table-cell>
                  <table:covered-table-cell/><table:table-cell><text:p>2</text:p>
                  </table:table-cell></table:table-row></table:table>
                  </office:text></o>)"}}),
                         "table.odt");
  EXPECT_EQ(table.text, "| | b c\n1 | | 2\n");
  const auto locked = read(
      zip_of({{"META-INF/manifest.xml", "<m><encryption-data/></m>"}, {"content.xml", "xx"}}),
      "locked.odt");
  EXPECT_EQ(locked.code(), Code::kFailedPrecondition);
  EXPECT_THAT(locked.status().message(), HasSubstr("password"));
}

/// A workbook of these sheets, each a name, a state and its data.
std::string xlsx_of(const std::vector<std::array<std::string, 3>>& sheets) {
  std::string list, relations;
  std::vector<std::pair<std::string, std::string>> entries;
  for (std::size_t i = 0; i < sheets.size(); ++i) {
    const std::string n = std::to_string(i + 1);
    list += "<sheet name=\"" + sheets[i][0] + "\" sheetId=\"" + n + "\" state=\"" + sheets[i][1] +
            "\" r:id=\"r" + n + "\"/>";
    relations += R"(<Relationship Id="r)" + n + R"(" Type="x/worksheet" Target="worksheets/s)" + n +
                 ".xml\"/>";
    entries.emplace_back("xl/worksheets/s" + n + ".xml",
                         "<worksheet><sheetData>" + sheets[i][2] + "</sheetData></worksheet>");
  }
  relations += R"(<Relationship Id="a" Type="x/sharedStrings" Target="/xl/strings.xml"/>)"
               R"(<Relationship Id="b" Type="x/styles" Target="./styles.xml"/>)";
  entries.emplace_back("xl/workbook.xml", "<workbook><sheets>" + list + "</sheets></workbook>");
  entries.emplace_back("xl/_rels/workbook.xml.rels", "<Rs>" + relations + "</Rs>");
  entries.emplace_back("xl/strings.xml",
                       "<sst><si><t>Name</t></si><si><r><t>Ci</t></r><r><t>ty</t></r>"
                       "<rPh><t>shi</t></rPh></si><si><t>Ada</t></si></sst>");
  entries.emplace_back(
      "xl/styles.xml",
      R"(<s><numFmts><numFmt numFmtId="164" formatCode="[$-407]dd\.\ mmm\ yy;@"/></numFmts>)"
      R"(<cellXfs><xf numFmtId="0"/><xf numFmtId="14"/><xf numFmtId="10"/><xf numFmtId="164"/>)"
      R"(</cellXfs></s>)");
  return zip_of(entries);
}

TEST(XlsxReader, EverySheetIsASectionWhoseRowsNameTheirColumns) {
  const auto d = one(
      xlsx_of({{"Staff", "visible",
                R"(<row><c r="B1" t="inlineStr"><is><t>All staff</t></is></c></row>)"
                R"(<row><c r="B3" t="s"><v>0</v></c><c r="C3" t="s"><v>1</v></c>)"
                R"(<c r="D3" t="str"><v>since</v></c><c r="E3" t="str"><v>share</v></c></row>)"
                R"(<row><c r="B4" t="s"><v>2</v></c><c r="D4" s="1"><v>45443</v></c>)"
                R"(<c r="E4" s="2"><v>0.07</v></c></row>)"
                R"(<row><c t="s"><v>9</v></c><c r="B5" t="b"><v>1</v></c>)"
                R"(<c r="C5"><v>0.1</v></c><c r="D5" s="3"><v>1</v></c></row>)"},
               {"Secret", "hidden", R"(<row><c r="A1"><v>1</v></c></row>)"},
               {"Names", "visible",
                R"(<row><c r="A1" t="s"><v>0</v></c><c r="B1" t="s"><v>1</v></c></row>)"},
               {"Empty", "visible", ""}}),
      "staff.xlsx");
  EXPECT_EQ(d.title, "staff");
  EXPECT_EQ(d.text,
            "# Staff\n\nAll staff\nName: Ada; since: 2024-05-31; share: 7%\n"
            "Name: TRUE; City: 0.1; since: 1900-01-01\n\n# Names\n\nName\nCity\n");
  EXPECT_EQ(heading_at(d, "Name: Ada"), "Staff");
  ASSERT_EQ(d.warnings.size(), 1u);
  EXPECT_THAT(d.warnings[0], HasSubstr("Secret"));
  EXPECT_FALSE(read(zip_of({{"xl/workbook.xml", "x"}}), "a.xlsx").ok());
  std::string wide;
  for (int i = 0; i < 1000; ++i) wide += R"(<row><c r="XFD1"><v>1</v></c></row>)";
  const auto refused = read(xlsx_of({{"Wide", "visible", wide}}), "wide.xlsx");
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_THAT(refused.status().message(), HasSubstr("CSV"));
}

TEST(XlsxReader, NumbersAreAsTheirFormatShowsThem) {
  const struct {
    double value;
    const char *format, *shown;
  } cases[] = {{1234567, "", "1234567"},
               {0.1, "General", "0.1"},
               {-2.5, "#,##0.00;[Red]-#,##0.00", "-2.5"},
               {1e300, "", "1e+300"},
               {12, "0\" days\"", "12"},
               {0.125, "0.0%", "12.5%"},
               {45443, "dd/mm/yyyy", "2024-05-31"},
               {45443.5, "yyyy-mm-dd hh:mm", "2024-05-31 12:00"},
               {45443.999999999, "yyyy-mm-dd hh:mm:ss", "2024-06-01 00:00"},
               {60, "mmm-yy", "1900-02-28"},
               {61, "mmm-yy", "1900-03-01"},
               {0.573, "h:mm:ss", "13:45:07"},
               {1.25, "[h]:mm", "30:00"},
               {-1, "yyyy", "-1"},
               {3e6, "yyyy", "3000000"}};
  for (const auto& c : cases)
    EXPECT_EQ(shown_number(c.value, c.format, false), c.shown) << c.value << " " << c.format;
  EXPECT_EQ(shown_number(0, "yyyy-mm-dd", true), "1904-01-01");
  EXPECT_EQ(shown_number(std::numeric_limits<double>::quiet_NaN(), "", false), "");
}

TEST(PptxReader, EverySlideIsAPageWithItsTitleTablesAndNotes) {
  const auto shape = [](const std::string& kind, const std::string& paragraphs) {
    return "<p:sp><p:nvSpPr><p:nvPr><p:ph " + kind + "/></p:nvPr></p:nvSpPr><p:txBody>" +
           paragraphs + "</p:txBody></p:sp>";
  };
  const auto p = [](const std::string& text) {
    return "<a:p><a:pPr/><a:r><a:t>" + text + "</a:t></a:r></a:p>";
  };
  const auto slide = [](const std::string& shapes, const std::string& attributes = "") {
    return "<p:sld " + attributes + "><p:cSld><p:spTree>" + shapes + "</p:spTree></p:cSld></p:sld>";
  };
  const std::string type = "x/relationships/";
  const auto d = one(
      zip_of(
          {{"ppt/presentation.xml",
            R"(<p:presentation><p:sldIdLst><p:sldId id="256" r:id="r2"/>)"
            R"(<p:sldId id="257" r:id="r1"/><p:sldId id="258" r:id="r3"/></p:sldIdLst>)"
            "</p:presentation>"},
           {"ppt/_rels/presentation.xml.rels",
            R"(<R><r Id="r1" Type="x/slide" Target="slides/slide1.xml"/>)"
            R"(<r Id="r2" Type="x/slide" Target="slides/slide2.xml"/>)"
            R"(<r Id="r3" Type="x/slide" Target="slides/slide3.xml"/></R>)"},
           {"ppt/slides/slide2.xml",
            slide(shape("type=\"sldNum\"", p("1")) + shape("idx=\"1\"", p("first") + p("second")) +
                  "<p:grpSp>" + shape("type=\"ctrTitle\"", p("The") + p("plan")) + "</p:grpSp>")},
           {"ppt/slides/slide1.xml",
            slide("<p:graphicFrame><a:graphic><a:graphicData><a:tbl><a:tr><a:tc/><a:tc>"
                  "<a:txBody>" +
                  p("2024") +
                  "</a:txBody></a:tc></a:tr></a:tbl>"
                  "</a:graphicData></a:graphic></p:graphicFrame>")},
           {"ppt/slides/_rels/slide1.xml.rels",
            R"(<R><r Id="n" Type=")" + type +
                R"(notesSlide" Target="../notesSlides/n1.xml"/></R>)"},
           {"ppt/notesSlides/n1.xml",
            slide(shape("type=\"body\"", p("Say this.")) + shape("type=\"sldNum\"", p("2")))},
           {"ppt/slides/slide3.xml", slide(shape("type=\"title\"", p("Old")), "show=\"0\"")}}),
      "plan.pptx");
  EXPECT_EQ(d.title, "The plan");
  EXPECT_EQ(d.text, "# The plan\n\n- first\n- second\n\n# Slide 2\n\n| 2024\n\nNotes: Say this.\n");
  EXPECT_EQ(page_at(d, "first"), 1u);
  EXPECT_EQ(page_at(d, "2024"), 2u);
  ASSERT_EQ(d.warnings.size(), 1u);
  EXPECT_THAT(d.warnings[0], HasSubstr("slide 3"));
}

TEST(OdtReader, WorkbooksAndSlidesAreReadToo) {
  const auto with = [](const std::string& kind, const std::string& content) {
    return zip_of({{"META-INF/manifest.xml", "<m/>"},
                   {"content.xml", "<o xmlns:office=\"o\"><office:" + kind + ">" + content +
                                       "</office:" + kind + "></o>"}});
  };
  const auto cell = [](const std::string& text) {
    return "<table:table-cell><text:p>" + text + "</text:p></table:table-cell>";
  };
  EXPECT_EQ(
      one(with("spreadsheet", "<table:table table:name=\"Staff\"><table:table-row>" + cell("Name") +
                                  cell("City") + "</table:table-row><table:table-row>" +
                                  cell("Ada") + cell("London") +
                                  "<table:table-cell table:number-columns-repeated=\"16000\"/>"
                                  "</table:table-row></table:table>"),
          "staff.ods")
          .text,
      "# Staff\n\nName: Ada; City: London\n");
  EXPECT_EQ(
      one(with("spreadsheet", "<table:table table:name=\"Names\"><table:table-row>" + cell("Name") +
                                  cell("City") + "</table:table-row></table:table>"),
          "names.ods")
          .text,
      "# Names\n\nName\nCity\n");
  const auto show = one(
      with("presentation",
           "<draw:page><draw:frame presentation:class=\"outline\"><draw:text-box><text:p>Body."
           "</text:p></draw:text-box></draw:frame><draw:frame presentation:class=\"title\">"
           "<draw:text-box><text:p>Plan</text:p></draw:text-box></draw:frame>"
           "<presentation:notes><draw:frame><draw:text-box><text:p>Say it.</text:p>"
           "</draw:text-box></draw:frame></presentation:notes></draw:page>"),
      "plan.odp");
  EXPECT_EQ(show.title, "Plan");
  EXPECT_EQ(show.text, "# Plan\n\nBody.\n\nNotes: Say it.\n");
  EXPECT_EQ(page_at(show, "Body"), 1u);
}

TEST(EpubReader, JoinsItsChaptersInOrder) {
  const auto d = one(epub_of({"<html><body><h1>One</h1><p>First.</p></body></html>",
                              "<html><body><h1>Two</h1><p>Second.</p></body></html>"}),
                     "book.epub");
  EXPECT_EQ(d.title, "Book");
  EXPECT_EQ(d.text, "# One\n\nFirst.\n\n# Two\n\nSecond.\n");
  EXPECT_EQ(heading_at(d, "Second"), "Two");
}

TEST(EpubReader, FindsChaptersByAnyPathAndNamesThoseThatAreNotRead) {
  std::string deep;
  for (int i = 0; i < 5000; ++i) deep += "<div>";
  const auto d = one(
      zip_of({{"META-INF/container.xml", R"(<c><rootfile full-path="book.opf"/></c>)"},
              {"book.opf",
               R"(<package><metadata/><manifest><item id="a" href="./text/../text/./a.xhtml"/>)"
               R"(<item id="b" href="b.xhtml"/></manifest><spine><itemref idref="a"/>)"
               R"(<itemref idref="b"/></spine></package>)"},
              {"text/a.xhtml", "<html><body><p>Found.</p></body></html>"},
              {"b.xhtml", "<html><body>" + deep + "lost</body></html>"}}),
      "book.epub");
  EXPECT_EQ(d.text, "Found.\n");
  ASSERT_EQ(d.warnings.size(), 1u);
  EXPECT_THAT(d.warnings[0], AllOf(HasSubstr("b.xhtml"), HasSubstr("levels")));
}

TEST(ZipFormats, BombsBrokenAndForeignArchivesAreRefused) {
  const auto bomb = read(zip_of({{"word/document.xml", std::string(300u << 20, ' ')}}), "b.docx");
  EXPECT_EQ(bomb.code(), Code::kResourceExhausted);
  EXPECT_THAT(bomb.status().message(), HasSubstr("zip bomb"));
  const auto whole = docx_of("<w:p/>");
  for (std::size_t size = 4; size < whole.size(); size += whole.size() / 16)
    EXPECT_FALSE(read(whole.substr(0, size), "cut.docx").ok()) << size;
  EXPECT_THAT(read(zip_of({{"a.txt", "x"}}), "a.zip").status().message(), HasSubstr("unpack"));
  EXPECT_THAT(read(zip_of({{"xl/workbook.bin", "x"}}), "a.xlsb").status().message(),
              HasSubstr("XLSX"));
  std::string deep;
  for (int i = 0; i < 5000; ++i) deep += "<w:p>";
  EXPECT_FALSE(read(docx_of(deep), "deep.docx").ok());
}

TEST(MailReader, ReadsPartsHeadersAndMailboxes) {
  const auto d = one(
      "From: =?utf-8?Q?J=C3=B6rg?= <j@x.y>\nSubject: Hello\nMIME-Version: 1.0\n"
      "Content-Type: multipart/mixed; boundary=m\n\n--m\n"
      "Content-Type: multipart/alternative; boundary=a\n\n--a\n"
      "Content-Type: text/plain; charset=iso-8859-1\n"
      "Content-Transfer-Encoding: quoted-printable\n\nGr=FC=DFe\n--a\n"
      "Content-Type: text/html\n\n<p>other</p>\n--a--\n--m\n"
      "Content-Type: application/pdf; name=\"a.pdf\"\n"
      "Content-Disposition: attachment; filename=\"a.pdf\"\n"
      "Content-Transfer-Encoding: base64\n\nQUJD\n--m--\n",
      "one.eml");
  EXPECT_EQ(d.title, "Hello");
  EXPECT_THAT(d.text, HasSubstr("From: Jörg"));
  EXPECT_THAT(d.text, HasSubstr("Grüße"));
  EXPECT_THAT(d.text, Not(HasSubstr("other")));
  ASSERT_EQ(d.warnings.size(), 1u);
  EXPECT_THAT(d.warnings[0], HasSubstr("a.pdf"));

  const auto form = [](const std::string& plain) {
    return one("Subject: Form\nMIME-Version: 1.0\n"
               "Content-Type: multipart/alternative; boundary=a\n\n--a\n"
               "Content-Type: text/plain\n\n" +
                   plain +
                   "\n--a\nContent-Type: text/html\n\n<p>the page</p>\n--a\n"
                   "Content-Type: text/calendar\n\nBEGIN:VCALENDAR\n--a--\n",
               "form.eml")
        .text;
  };
  EXPECT_THAT(form("the text"), AllOf(HasSubstr("the text"), Not(HasSubstr("page"))));
  EXPECT_THAT(form(" "), AllOf(HasSubstr("the page"), Not(HasSubstr("VCALENDAR"))));
  const auto saved = one(
      "From: <Saved by Blink>\nSubject: A page\nMIME-Version: 1.0\n"
      "Content-Type: multipart/related; boundary=m\n\n--m\nContent-Type: text/html\n"
      "Content-Transfer-Encoding: quoted-printable\n\n<h1>Caf=C3=A9</h1>\n--m\n"
      "Content-Type: text/css\n\np{}\n--m--\n",
      "page.mhtml");
  EXPECT_EQ(saved.title, "A page");
  EXPECT_THAT(saved.text, AllOf(HasSubstr("# Café"), Not(HasSubstr("p{}"))));

  const std::string first =
                        "From a@b Mon Jan  1 00:00:00 2024\nFrom: a@b\nSubject: 1\n"
                        "Message-ID: <m1@b>\n\nOne.\n\n",
                    second =
                        "From a@b Mon Jan  1 00:00:01 2024\nFrom: a@b\nSubject: 2\n"
                        "Message-ID: <m1@b>\n\nTwo.\n";
  const auto box = read(first + second, "all.mbox");
  ASSERT_TRUE(box.ok()) << box.status().to_string();
  ASSERT_EQ(box->size(), 2u);
  EXPECT_EQ((*box)[0].part, "m1@b");
  EXPECT_EQ((*box)[1].part, "m1@b-2");
  EXPECT_THAT((*box)[1].text, HasSubstr("Two."));
}

TEST(Formats, ContentDecidesBeforeTheName) {
  set_pdf_reader([](std::string_view, const ReaderRequest&) -> Result<std::vector<ReadDocument>> {
    return std::vector<ReadDocument>{{.title = "pdf", .text = "x"}};
  });
  EXPECT_EQ(one("%PDF-1.4", "looks.txt").title, "pdf");
  set_pdf_reader(nullptr);
  EXPECT_EQ(read("%PDF-1.4", "looks.txt").code(), Code::kUnimplemented);
}

}  // namespace
}  // namespace quire
