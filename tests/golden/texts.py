"""Texts of several scripts for the golden scripts: out of copyright for centuries, or written for this file. (name, text)."""

TEXTS = [
    ("english", """Four score and seven years ago our fathers brought forth on this continent, a new nation, conceived in Liberty, and dedicated to the proposition that all men are created equal.

Now we are engaged in a great civil war, testing whether that nation, or any nation so conceived and so dedicated, can long endure. We are met on a great battle-field of that war. We have come to dedicate a portion of that field, as a final resting place for those who here gave their lives that that nation might live. It is altogether fitting and proper that we should do this."""),
    ("english", """Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do: once or twice she had peeped into the book her sister was reading, but it had no pictures or conversations in it, "and what is the use of a book," thought Alice "without pictures or conversations?"

So she was considering in her own mind (as well as she could, for the hot day made her feel very sleepy and stupid), whether the pleasure of making a daisy-chain would be worth the trouble of getting up and picking the daisies, when suddenly a White Rabbit with pink eyes ran close by her."""),
    ("english", """It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a wife. However little known the feelings or views of such a man may be on his first entering a neighbourhood, this truth is so well fixed in the minds of the surrounding families, that he is considered as the rightful property of some one or other of their daughters.

"My dear Mr. Bennet," said his lady to him one day, "have you heard that Netherfield Park is let at last?" Mr. Bennet replied that he had not."""),
    ("english", """A relay team does not win because one runner is fast. It wins because the baton changes hands at full speed, inside a short zone, without a glance back. The runner who comes in counts her steps; the runner who goes out starts before she can be sure, and trusts the call. In training they measure nothing but the two seconds around the exchange.

Last spring, the junior team of our town lost 0.35 s there in each of 3 exchanges: more than a second in all, or about 9 metres. They moved the mark by 40 centimetres, ran it 120 times in six weeks, and won the final in 44.81 s."""),
    ("english", """The kettle is filled with cold water, set on the stove and brought to the boil. While it heats, warm the pot: pour in a little hot water, turn it round and empty it. Put in one spoonful of leaves for each person and one for the pot. When the water boils, bring the pot to the kettle, never the kettle to the pot, and pour at once. Let it stand for four minutes; stir; strain into cups. Milk may be added before or after, and people have quarrelled about the order for two hundred years."""),
    ("chat", """<|im_start|>system
You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>
<|im_start|>user
Why is the sky blue? Please answer in three short paragraphs.<|im_end|>
<|im_start|>assistant
"""),
    ("chat", """<|im_start|>system
You answer questions about cooking.<|im_end|>
<|im_start|>user
I have 3 eggs, some flour and half a litre of milk. What can I make?<|im_end|>
<|im_start|>assistant
With eggs, flour and milk you can make pancakes.<|im_end|>
<|im_start|>user
How, exactly?<|im_end|>
<|im_start|>assistant
"""),
    ("code", """#include <stdio.h>
#include <string.h>

/* Counts how often each letter occurs. */
static void count_letters(const char *text, int counts[26])
{
    memset(counts, 0, 26 * sizeof *counts);
    for (size_t i = 0; text[i]; i++) {
        char c = text[i] | 0x20;
        if (c >= 'a' && c <= 'z')
            counts[c - 'a']++;
    }
}

int main(int argc, char **argv)
{
    int counts[26];
    for (int i = 1; i < argc; i++) {
        count_letters(argv[i], counts);
"""),
    ("code", '''import heapq
from collections import defaultdict


def shortest_paths(edges, source):
    """Dijkstra's algorithm. `edges` holds (from, to, weight); returns {node: distance}."""
    graph = defaultdict(list)
    for a, b, weight in edges:
        graph[a].append((b, weight))
    distance = {source: 0}
    queue = [(0, source)]
    while queue:
        d, node = heapq.heappop(queue)
        if d > distance[node]:
            continue
        for other, weight in graph[node]:
            if d + weight < distance.get(other, float("inf")):
                distance[other] = d + weight
'''),
    ("data", """{
  "name": "relay",
  "version": "2.14.0",
  "nodes": [
    {"id": 1, "role": "prefill", "address": "10.0.0.11:7071", "load": 0.25, "tags": ["fast", "eu-west"]},
    {"id": 2, "role": "decode", "address": "10.0.0.12:7071", "load": 0.75, "tags": []},
    {"id": 3, "role": "decode", "address": "10.0.0.13:7071", "load": null, "tags": ["spare"]}
  ],
  "limits": {"tokens": 8192, "requests": 256, "timeout_ms": 30000},
"""),
    ("data", """| city | country | inhabitants | founded |
|---|---|---:|---:|
| Lisbon | Portugal | 545,796 | -1200 |
| Prague | Czech Republic | 1,357,326 | 870 |
| Kyoto | Japan | 1,463,723 | 794 |
| Cusco | Peru | 428,450 | 1100 |

1 + 1 = 2, 2 + 2 = 4, 4 + 4 = 8, 8 + 8 = 16, 16 + 16 = 32, 32 + 32 = 64,
"""),
    ("latin", """Tous les êtres humains naissent libres et égaux en dignité et en droits. Ils sont doués de raison et de conscience et doivent agir les uns envers les autres dans un esprit de fraternité.

Longtemps, le facteur monta la rue à pied. Il connaissait chaque porte, chaque chien, et l'heure à laquelle la boulangère sortait le pain. Puis on lui donna un vélo, et il arriva partout trop tôt."""),
    ("latin", """Habe nun, ach! Philosophie, Juristerei und Medizin, und leider auch Theologie durchaus studiert, mit heißem Bemühn. Da steh ich nun, ich armer Tor! Und bin so klug als wie zuvor; heiße Magister, heiße Doktor gar und ziehe schon an die zehen Jahr herauf, herab und quer und krumm meine Schüler an der Nase herum – und sehe, daß wir nichts wissen können!"""),
    ("latin", """En un lugar de la Mancha, de cuyo nombre no quiero acordarme, no ha mucho tiempo que vivía un hidalgo de los de lanza en astillero, adarga antigua, rocín flaco y galgo corredor. Una olla de algo más vaca que carnero, salpicón las más noches, duelos y quebrantos los sábados, lantejas los viernes, algún palomino de añadidura los domingos, consumían las tres partes de su hacienda."""),
    ("latin", """Gallia est omnis divisa in partes tres, quarum unam incolunt Belgae, aliam Aquitani, tertiam qui ipsorum lingua Celtae, nostra Galli appellantur. Hi omnes lingua, institutis, legibus inter se differunt. Wszyscy ludzie rodzą się wolni i równi. Všichni lidé rodí se svobodní. Tất cả mọi người sinh ra đều được tự do. Bütün insanlar hür doğarlar."""),
    ("cyrillic", """Мой дядя самых честных правил, когда не в шутку занемог, он уважать себя заставил и лучше выдумать не мог. Его пример другим наука; но, боже мой, какая скука с больным сидеть и день и ночь, не отходя ни шагу прочь! Все люди рождаются свободными и равными в своём достоинстве и правах."""),
    ("greek", """Μῆνιν ἄειδε, θεά, Πηληϊάδεω Ἀχιλῆος οὐλομένην, ἣ μυρί᾽ Ἀχαιοῖς ἄλγε᾽ ἔθηκε. Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα. Σήμερα το πρωί η θάλασσα ήταν ήσυχη και τα καράβια γύρισαν νωρίς."""),
    ("arabic", """يولد جميع الناس أحرارا متساوين في الكرامة والحقوق. في الصباح فتح البائع دكانه ووضع الخبز على الطاولة، ثم جلس ينتظر الناس. كان الجو باردا والشارع هادئا."""),
    ("hebrew", """בראשית ברא אלהים את השמים ואת הארץ. והארץ היתה תהו ובהו וחשך על פני תהום. כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם."""),
    ("devanagari", """सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है। सुबह नदी के किनारे बच्चे खेल रहे थे।"""),
    ("chinese", """道可道，非常道。名可名，非常名。無名天地之始；有名萬物之母。子曰：「學而時習之，不亦說乎？有朋自遠方來，不亦樂乎？人不知而不慍，不亦君子乎？」人人生而自由，在尊严和权利上一律平等。今天早上下雨了，街上没有人，只有一只猫坐在门口。"""),
    ("japanese", """祇園精舎の鐘の声、諸行無常の響きあり。沙羅双樹の花の色、盛者必衰の理をあらはす。いろはにほへと ちりぬるを。けさ、駅でバトンをわたす練習をしているこどもたちを見ました。"""),
    ("korean", """나랏말싸미 듕귁에 달아. 모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다. 오늘 아침에는 비가 와서 학교까지 천천히 걸어갔다."""),
    ("thai", """มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ เช้านี้ฝนตกหนัก เราจึงอยู่บ้านและดื่มชา"""),
    ("mixed", """Release notes 3.2 🎉: fixed #1042 (naïve façade), added support for 中文 and العربية; see https://example.org/a?b=1&c=%20d. Temperature: −3.5 °C ± 0.2; π ≈ 3.14159; x² + y² = r²; “quotes” — dashes… 👍🏽 👨‍👩‍👧 ✅"""),
]

# Half a hundred ways to begin an answer or a text: the prompts of the greedy golden values.
PROMPTS = [
    "The capital of France is", "Once upon a time, in a small village by the sea,", "def fibonacci(n):\n",
    "The three primary colours are", "In 1969, the first", "Water boils at", "import numpy as np\n\n", "Dear Sir or Madam,",
    "To be, or not to be,", "1, 2, 3, 4, 5, 6,", "The quick brown fox", "SELECT name, age FROM", "# Shopping list\n\n- ",
    "Photosynthesis is the process by which", "La capital de España es", "Der schnelle braune Fuchs", "Le chat est",
    "Столица России", "Η Αθήνα είναι", "東京は", "北京是", "파리는", "{\"name\": \"Alice\", \"age\":", "<html>\n<head>\n",
    "The difference between a list and a tuple in Python is", "int main(void)\n{\n", "Roses are red,", "Q: What is 7 times 8?\nA:",
    "My favourite book is", "How to make a cup of tea:\n1.", "The mitochondria", "According to the law of gravity,",
    "Machine learning is", "On a cold winter morning,", "Error: cannot open file", "The planets of the solar system are",
]
CHAT_PROMPTS = [
    "Why is the sky blue?", "Write a haiku about the sea.", "What is 12 + 30?", "Name five animals.", "Explain recursion.",
    "Translate 'good morning' to French.", "Who wrote Hamlet?", "Give me a recipe for pancakes.", "Tell me a joke.",
    "What is a prime number?", "How do airplanes fly?", "Summarise the water cycle in two sentences.", "Hi!",
    "List the days of the week.",
]
assert len(PROMPTS) + len(CHAT_PROMPTS) == 50
