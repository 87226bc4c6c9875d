// The whole page: what was chosen, what was answered, what is kept; all of it in the browser.
import { Card } from "./card.js";
import { CaseForm } from "./form.js";
import { Kept, LetterDialog } from "./kept.js";
import { Limits } from "./limits.js";
import { changesText, download, percent } from "./shared.js";
import { WhatIf } from "./whatif.js";

const STORED = ["origin", "base", "row", "limits", "answer", "why", "dials", "kept", "formOpen", "begin", "question"];
const noLimits = (target) => ({ features: {}, most: null, typed: [], target });
const failure = (reply) => reply.failed || (reply.problems ?? []).map(([, words]) => words).join(" ");
const copy = (value) => JSON.parse(JSON.stringify(value ?? null));

export const Workbench = {
  name: "Workbench",
  components: { Card, CaseForm, Kept, LetterDialog, Limits, WhatIf },
  props: { page: Object },
  emits: ["ask"],
  template: `
  <div class="bench" :aria-busy="busy ? 'true' : 'false'">
    <a class="skip" href="#ways">Skip to your ways</a>
    <header class="top">
      <div class="brand"><span class="mark" aria-hidden="true"></span>
        <h1>What would have to change?</h1></div>
      <nav class="tabs" aria-label="Parts of this page">
        <a href="#you">You</a><a href="#limits">Limits</a><a href="#ways">Ways</a>
        <a href="#kept">Bookmarks<span v-if="kept.length" class="count">{{ kept.length }}</span></a>
      </nav>
      <div class="tools">
        <form v-if="page.login" method="post" :action="page.path + '/logout'" @submit="erase">
          <button class="plain">Log out</button></form>
      </div>
      <div class="progress" :class="{ on: busy }" aria-hidden="true"></div>
    </header>

    <div class="parts" :class="{ begin }">
      <section class="verdict panel" aria-label="The decision" :class="{ good: answer && answer.status === 'already_target' }">
        <div><p class="quiet">The decision today</p>
          <p class="decision">{{ answer && answer.label || "…" }}</p></div>
        <div><label class="quiet" for="target">You would like</label>
          <select id="target" class="decision wanted" :value="limits.target ?? ''" @change="changeTarget($event.target.value)">
            <option value="">{{ page.labels.length === 2 ? "the other" + (limits.target === null && wanted ? ": " + wanted : "") : "any other" }}</option>
            <option v-for="(label, i) in page.labels" :key="i" :value="i">{{ label }}</option></select></div>
        <div v-if="answer && answer.chance !== null">
          <p class="quiet">Chance of that today</p><p class="decision">{{ percent(answer.chance) }}</p></div>
        <p class="state" role="status" aria-live="polite">{{ forgotten ? "What you entered is forgotten. " : "" }}{{ status || summary }}</p>
      </section>
      <aside aria-label="You and your limits">
        <section id="you" class="panel" aria-labelledby="you-title">
          <h2 id="you-title"><span class="step" aria-hidden="true">1</span> You</h2>
          <div class="field" v-if="page.cases.length">
            <label for="case" class="sr">Choose a case</label>
            <select id="case" :value="origin.position" @change="chooseCase($event.target.value)">
              <option v-for="(item, i) in page.cases" :key="i" :value="i">
                Case {{ item.name }}{{ item.label ? " – " + item.label : " – cannot be read" }}</option>
              <option value="own">{{ origin.position === "own" && origin.name || "My own details" }}</option>
            </select>
          </div>
          <div class="field" v-if="page.unlisted">
            <label for="find">Or find one by its name</label>
            <input id="find" type="search" @change="chooseName($event.target.value)">
          </div>
          <p v-if="said.name" class="problem" role="alert">{{ said.name }}</p>
          <CaseForm :columns="page.columns" :row="row" :problems="problems"
                    :open="formOpen" @open="formOpen = $event; save()" @change="changeRow" />
          <button v-if="begin" class="primary" @click="showDecision">Show the decision</button>
        </section>
        <Limits :page="page" :row="row" :limits="limits" :problems="limitProblems" @change="changeLimits" @reset="resetLimits" />
      </aside>

      <section id="ways" class="ways" aria-labelledby="ways-title" tabindex="-1">
        <p v-if="page.caution" class="notice" role="note">The check of this page’s suggestions found
          weaknesses. Talk to an adviser before you act on them.</p>
        <h2 id="ways-title"><span class="step" aria-hidden="true">3</span> Your ways
          <span v-if="cards.length" class="quiet">{{ cards.length === 1 ? "one way"
            : cards.length + " different ways, the easiest first" }}</span></h2>
        <p v-if="cards.length" class="help hint">{{ cards.length > 1 ? "Any one of them is enough. " : "" }}<template
          v-if="cards[0].stops.length > 1">Move the slider to the right to change more{{ unsure ? "" : " and be safer" }}. </template><template
          v-if="unsure">How sure a decision would be is not known here: a small difference could turn it.</template></p>
        <p v-if="answer && stale" class="notice" role="note">{{ stale }} So this page does not show what you set last.
          <a :href="limitProblems.length ? '#limits' : '#you'">Correct it</a></p>
        <p v-if="failed" class="problem" role="alert">{{ failed }}
          <button class="plain" @click="explain">Try again</button></p>

        <div v-if="answer && answer.status === 'already_target'" class="panel empty">
          <h3>Nothing has to change</h3>
          <p>The decision is “{{ answer.label }}” already.</p></div>
        <div v-else-if="answer && answer.status === 'malformed'" class="panel empty">
          <h3>No decision can be made</h3><p>{{ answer.reason }}</p></div>
        <div v-else-if="nothing" class="panel empty">
          <h3>Nothing fits all your limits</h3>
          <template v-if="!why"><p>{{ busy ? "Looking for what stands in the way …" : "The search for what stands in the way took too long." }}</p>
            <progress v-if="busy" aria-label="Looking for what stands in the way"></progress></template>
          <template v-else>
            <template v-if="why.rules.length"><p>{{ why.steps.length ? "These cannot hold together:" : "Rules that always hold stand in the way:" }}</p>
              <ul class="steps"><li v-for="(rule, i) in why.rules" :key="i">{{ rule }}</li></ul></template>
            <p v-else-if="!why.then">None of your own limits stands in the way. Either a rule that always holds does,
              or there is no such case at all.</p>
            <template v-if="why.steps.length"><p>{{ promised ? "This would be enough to find a way:" : "This would be a first step:" }}</p>
              <ul class="steps"><li v-for="(step, i) in why.steps" :key="i"><template v-if="step.then"><strong>“{{ step.then }}”</strong>
                {{ step.now ? "instead of “" + step.now + "”" : "" }}</template><strong v-else>without “{{ step.now }}”</strong></li></ul></template>
            <p v-if="promised" class="promise">{{ why.steps.length ? "You would then see:" : "There is a way after all:" }}
              <strong>{{ changesText(page.columns, promised.changes) }}</strong>
              ({{ promised.label }}{{ promised.edge ? ", only just" : "" }}{{ promised.chance === null ? "" : ", chance " + percent(promised.chance) }}).</p>
            <button v-if="why.then" class="primary" @click="loosen">{{ why.steps.length ? "Loosen and search again" : "Show it" }}</button>
          </template>
          <button class="plain" @click="resetLimits">Remove all my limits</button></div>

        <div class="cards" :class="{ old: busy }">
          <Card v-for="(card, i) in cards" :key="answerId + ':' + i" :card="card" :number="i + 1"
                :answer="answer" :columns="page.columns"
                :stop="dials[i] ?? card.start + 1" :kept="isKept(card, i)" :efforts="efforts" :writing="writing === i"
                @stop="setDial(i, $event)" @keep="keep(card, i)" @letter="letter(planOf(card, i), i)"
                @try="openWhatIf(card, i)" />
        </div>
        <details v-if="cards.length" class="more"><summary>What do these figures mean?</summary>
          <dl class="words"><dt>Just enough</dt><dd>The smallest change found that turns the decision.</dd>
            <dt>Recommended</dt><dd>The smallest change found that makes the decision clear.</dd>
            <dt>Best found</dt><dd>Nothing within your limits is as clear as a recommended way.</dd>
            <dt>Effort</dt><dd>How much changes, and how hard you said that is. 2× is twice the least on this page.</dd>
            <dt>Chance</dt><dd>How sure the decision would be. Above one half, it is the one you want.</dd>
            <dt>Likely to last</dt><dd>How likely it is that the decision stays the same when the system that decides is updated.</dd>
            <dt>Such a case is</dt><dd>How many cases with that decision look like this one. The more usual, the more realistic.</dd>
            <dt>The grey bars</dt><dd>Where other cases are. The ring is you today, the dot is you after the change.</dd></dl></details>
        <p v-if="cards.length" class="fine">This is advice about what could change, worked out from how
          decisions are made here. It is not the legal reason for a decision, and it does not promise a later
          one.</p>

        <Kept :plans="kept" :columns="page.columns" @remove="removePlan" @letter="letter"
              @json="downloadJson" @forget="forget" />
      </section>
    </div>
    <footer class="foot"><a v-if="page.advisers" :href="page.path + '/report'">For advisers</a>
      <span>What you enter is kept in this browser alone. The server works out answers from it and keeps nothing.</span>
    </footer>
    <a v-if="busy || (!waysInView && !begin)" class="pill" :class="{ busy }" href="#ways" aria-hidden="true" tabindex="-1">{{ status || [decided, summary].join(" ") }}
      <span v-if="!busy">Look ↓</span></a>
    <WhatIf v-if="whatIf" :start="whatIf" :columns="page.columns" :wanted="wanted" :ask="judge" :adopt="adopt"
            @close="closeWhatIf" />
    <LetterDialog v-if="letterShown" :letter="letterShown" @close="letterShown = null" />
  </div>`,

  data() {
    return {
      origin: { position: null, name: "" }, base: null, row: {},
      limits: noLimits(this.page.target), answer: null, answerId: 0, why: null,
      dials: {}, kept: [], formOpen: false, whatIf: null, letterShown: null,
      status: "", failed: "", said: {}, problems: {}, limitProblems: [], writing: null,
      running: 0, soon: false, waysInView: true, forgotten: false, begin: false,
    };
  },

  computed: {
    busy() { return this.running > 0 || this.soon; },
    cards() { return this.answer?.cards ?? []; },
    summary() {
      if (this.begin && !this.busy) return "Fill in your details to begin.";
      if (this.stale) return this.stale;
      if (!this.answer || this.failed) return "";
      const count = this.cards.length;
      if (this.answer.status === "already_target") return "Nothing has to change.";
      return count ? (count === 1 ? "One way found." : count + " ways found.") : "No way found within these limits.";
    },
    decided() { return this.answer?.label && this.cards.length ? "Today: " + this.answer.label + "." : ""; },
    efforts() {
      const all = this.cards.flatMap((card) => card.stops.map((stop) => stop.effort));
      return { least: Math.min(...all) || 1, most: Math.max(...all) || 1 };
    },
    unsure() {  // for labels alone it is not known how close to the line they are
      return this.cards.every((card) => card.stops.every((stop) => (stop.keeps ?? stop.chance) === null));
    },
    promised() {  // what the page shows first once it is loosened
      const card = this.why?.then?.cards[0];
      return card ? card.stops[card.start] : null;
    },
    stale() {
      if (Object.keys(this.problems).length) return "One of your details cannot be used.";
      return this.limitProblems.some(([place]) => !place.startsWith("typed:")) ? "One of your limits cannot be used." : "";
    },
    lacking() {  // details that are needed; a case of the file is taken as it is
      return this.base ? [] : this.page.columns.filter((column) => column.needed && (this.row[column.name] ?? "") === "");
    },
    nothing() { return ["none_found", "infeasible"].includes(this.answer?.status); },
    wanted() {
      const target = this.limits.target;
      if (this.answer?.target) return this.answer.target;
      if (target !== null) return this.page.labels[target];
      return this.page.labels.length === 2
        ? this.page.labels.find((label) => label !== this.answer?.label) : "another decision";
    },
  },

  created() {
    this.pending = new Map();
    this.count = this.latest = 0;
    this.storageKey = "lapace-workbench:" + this.page.fingerprint;
  },
  mounted() {
    this.restore();
    this.watcher = new IntersectionObserver(([entry]) => { this.waysInView = entry.isIntersecting; });
    this.watcher.observe(document.getElementById("ways"));
  },
  unmounted() {
    this.watcher.disconnect();
  },

  methods: {
    changesText, percent,

    // -- messages ------------------------------------------------------------------------------
    ask(kind, message = {}) {
      const id = ++this.count;
      return new Promise((resolve) => {
        this.pending.set(id, resolve);
        this.$emit("ask", { kind, id, ...copy(message) });
      });
    },
    receive(text) {
      const reply = JSON.parse(text);
      this.pending.get(reply.id)?.(reply);
      this.pending.delete(reply.id);
    },
    async working(words, kind, message) {  // a question that the visitor waits for
      this.running += 1;
      this.status = words;
      const reply = await this.ask(kind, message);
      this.running -= 1;
      if (!this.busy) this.status = "";
      return reply;
    },

    // -- rows ----------------------------------------------------------------------------------
    async chooseCase(value) {
      if (value === "own") {
        this.origin = { position: "own", name: "" };
        this.base = null;
        this.formOpen = true;
        this.start();
        return;
      }
      await this.fetchCase({ position: Number(value) });
    },
    async chooseName(name) { if (name.trim()) await this.fetchCase({ name: name.trim() }); },
    async fetchCase(which) {
      this.said = {};
      const reply = await this.working("Opening the case …", "case", which);
      if (reply.problems) { this.said = { name: reply.problems[0][1] }; return; }
      if (reply.failed !== undefined) { this.failed = reply.failed; return; }
      this.origin = { position: reply.position, name: reply.name };
      this.limits = noLimits(this.page.target);  // they were another person's
      this.base = reply.values;
      this.row = { ...reply.values };
      this.start();
    },
    start() {
      this.answer = null; this.why = null; this.dials = {}; this.problems = {}; this.limitProblems = [];
      this.later(0);
    },
    async showDecision() {  // on a form that began empty
      this.problems = Object.fromEntries(this.lacking.map((column) => [column.name, "This is needed."]));
      if (!this.lacking.length) await this.explain();
      await this.$nextTick();
      document.querySelector("#you .wrong input, #you .wrong select")?.focus();
    },
    changeRow(name, value) {
      this.row = { ...this.row, [name]: value };
      if (this.origin.position !== "own") {
        const name = this.origin.name;
        this.origin = { position: "own", name: name && name + ", with changed details" };
      }
      this.later();
    },

    // -- limits --------------------------------------------------------------------------------
    changeLimits(limits) { this.limits = limits; this.later(); },
    changeTarget(value) { this.changeLimits({ ...this.limits, target: value === "" ? null : Number(value) }); },
    resetLimits() { this.limits = noLimits(this.page.target); this.later(0); },
    loosen() {  // what was said to follow was searched for already
      const { limits, shown, then } = this.why;
      this.limits = limits;
      if (then.status === "answered") this.show(then, { ...this.question, limits, shown });
      else this.explain();
    },

    // -- explanations --------------------------------------------------------------------------
    later(pause = 450) {  // several changes in a row are one question
      clearTimeout(this.timer);
      this.save();
      if (this.begin) return;
      this.status = "One moment …";
      this.soon = true;
      this.timer = setTimeout(() => this.explain(), pause);
    },
    async explain() {
      clearTimeout(this.timer);
      this.soon = false;
      this.failed = "";
      const mine = ++this.latest;
      const derived = this.page.columns.some((column) => column.derived.length);
      if (derived && this.origin.position === "own") await this.follow();
      const question = { row: this.row, base: this.base, limits: this.limits, name: this.origin.name, shown: this.shown() };
      const reply = await this.working("Looking for ways …", "explain", question);
      if (mine !== this.latest) return;
      if (reply.failed !== undefined) { this.failed = reply.failed; return; }
      if (reply.problems) { this.showProblems(reply.problems); return; }
      this.show(reply, question);
      if (this.nothing) await this.whyNot(mine);
    },
    show(answer, question) {
      if (this.begin) { this.begin = false; this.formOpen = false; }
      this.answer = answer;
      this.answerId += 1;
      this.dials = {};
      this.why = null;
      this.problems = {}; this.limitProblems = [];
      this.question = copy(question);
      this.save();
    },
    shown() {  // ways found for these details so far: one within a new limit must not vanish
      if (JSON.stringify(this.question?.row) !== JSON.stringify(this.row)) return [];
      const stops = this.cards.flatMap((card) => card.stops.filter((stop) => /^(best|enough)/.test(stop.key)));
      const ways = stops.map((stop) => Object.fromEntries(
        stop.changes.map((change) => [this.page.columns[change.f].name, change.value])));
      const every = [...ways, ...(this.question.shown ?? [])].map((way) => JSON.stringify(way));
      return [...new Set(every)].slice(0, 20).map((way) => JSON.parse(way));
    },
    async follow() {  // values that follow from others
      const reply = await this.ask("judge", { row: this.row, base: this.base });
      if (!reply.values) return;
      for (const column of this.page.columns)
        if (column.derived.length) this.row[column.name] = reply.values[column.name];
    },
    async whyNot(mine) {
      const reply = await this.working("Looking for what stands in the way …", "whynot", this.question);
      if (mine !== this.latest) return;
      if (reply.failed !== undefined) { this.failed = reply.failed; return; }
      if (reply.problems) return;
      this.why = reply;
      this.save();
    },
    showProblems(problems) {
      const names = new Set(this.page.columns.map((column) => column.name));
      this.problems = Object.fromEntries(problems.filter(([place]) => names.has(place)));
      this.limitProblems = problems.filter(([place]) => !names.has(place));
      if (Object.keys(this.problems).length) this.formOpen = true;
      const wrong = this.limitProblems.map(([place]) => place.replace(/^typed:/, ""));
      this.limits = { ...this.limits, typed: this.limits.typed.filter((line) => !wrong.includes(line.trim())) };
      this.save();
    },
    async judge(row, start) {
      return this.ask("judge", { row, start, limits: this.limits });
    },

    // -- cards ---------------------------------------------------------------------------------
    setDial(i, stop) { this.dials = { ...this.dials, [i]: stop }; this.saveSoon(); },
    stopOf(card, i) { return card.stops[(this.dials[i] ?? card.start + 1) - 1] ?? null; },
    planOf(card, i) {
      const stop = this.stopOf(card, i) ?? card.stops[card.start];
      return copy({ title: stop.title, stop, chance: this.answer.chance, question: this.question, from: this.answer.label,
        name: this.origin.name, id: this.question.name + "|" + stop.key + "|"
          + JSON.stringify(stop.changes.map((change) => [change.f, change.after])) });
    },
    isKept(card, i) { return this.kept.some((plan) => plan.id === this.planOf(card, i).id); },
    keep(card, i) {
      const plan = this.planOf(card, i);
      if (this.isKept(card, i)) { this.removePlan(plan); return; }
      this.kept = [...this.kept, plan];
      this.save();
    },
    removePlan(plan) {
      this.kept = this.kept.filter((other) => other.id !== plan.id);
      this.save();
    },
    async letter(plan, i = null) {
      this.writing = i;
      const reply = await this.working("Writing the letter …", "letter", { ...plan.question, key: plan.stop.key });
      this.writing = null;
      if (reply.html) this.letterShown = reply;
      else this.failed = failure(reply);
    },
    async downloadJson(plan) {
      const reply = await this.working("Preparing the file …", "json", plan.question);
      if (reply.text) download(reply.file, reply.text, "application/json");
      else this.failed = failure(reply);
    },
    openWhatIf(card, i) {
      const row = { ...this.question.row };
      for (const change of this.stopOf(card, i)?.changes ?? [])
        row[this.page.columns[change.f].name] = change.value;
      this.whatIf = { row, from: this.question.row, label: this.answer.label };
    },

    async adopt(row) {  // limits under which values tried by hand are the way; returns what is wrong
      const features = { ...this.limits.features }, way = {}, from = this.question.row;
      for (const column of this.page.columns) {
        const { name } = column, value = row[name], same = String(value) === String(from[name]);
        if (column.derived.length) continue;
        if (!same) way[name] = value;
        if (column.lock === "keep") continue;
        features[name] = same ? { mode: "keep" } : column.kind === "choice" ? { mode: "free", levels: [value], must: true }
          : { mode: "free", low: value, high: value };
      }
      this.latest += 1;  // an answer on its way is no longer wanted
      const question = { ...this.question, limits: { ...this.limits, most: null, features }, shown: [way] };
      const reply = await this.working("Making this your way …", "explain", question);
      if (reply.failed || reply.problems) return failure(reply);
      if (reply.status !== "answered") return "No way could be made of this. Change a value, then try again.";
      const card = reply.cards[0];
      Object.assign(card.stops[card.start], { name: "Your own values", meaning: "What you tried yourself." });
      this.limits = question.limits;
      this.show(reply, question);
      return "";
    },
    async closeWhatIf(adopted) {
      this.whatIf = null;
      if (!adopted) return;
      await this.$nextTick();
      document.getElementById("ways").focus();
    },

    // -- the browser's own storage ---------------------------------------------------------------
    saveSoon() { clearTimeout(this.saving); this.saving = setTimeout(() => this.save(), 300); },
    save() {
      if (this.erased) return;
      const all = Object.fromEntries(STORED.map((name) => [name, this[name]]));
      try { localStorage.setItem(this.storageKey, JSON.stringify(all)); } catch { /* full, or shut */ }
    },
    restore() {
      let found = null;
      try { found = JSON.parse(localStorage.getItem(this.storageKey)); } catch { /* nothing kept */ }
      if (found?.row && found.limits) {
        Object.assign(this, found);
        const same = JSON.stringify([this.question?.row, this.question?.limits])
          === JSON.stringify([this.row, this.limits]);
        if (!this.begin && (!this.answer || !same)) this.explain();
        return;
      }
      if (this.page.cases.length) this.fetchCase({ position: this.page.first });
      else {
        this.origin = { position: "own", name: "" };
        this.formOpen = true;
        this.row = Object.fromEntries(this.page.columns.map((column) => [column.name, null]));
        this.begin = true;
      }
    },
    erase() {
      this.erased = true;
      try { localStorage.removeItem(this.storageKey); } catch { /* nothing kept */ }
    },
    forget() {  // and begin again, as on the first visit
      this.erase();
      clearTimeout(this.timer);
      clearTimeout(this.saving);
      this.pending.clear();  // replies on their way are about what is forgotten
      Object.assign(this, this.$options.data.call(this), { question: null });
      this.erased = false;
      window.scrollTo({ top: 0 });
      this.restore();
      this.forgotten = true;
    },
  },
};
