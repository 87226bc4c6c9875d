// Values changed by hand, and the decision on them.
import { Field, percent } from "./shared.js";

export const WhatIf = {
  components: { Field },
  props: { start: Object, columns: Array, wanted: String, ask: Function },
  emits: ["adopt", "close"],
  template: `
  <dialog ref="dialog" class="sheet" aria-labelledby="try-title" @close="$emit('close')">
    <div class="bar"><h2 id="try-title">Try your own values</h2>
      <button v-if="outcome && outcome.reached && !outcome.broken.length && !waiting" class="primary"
        @click="$emit('adopt', row)">Make this my way</button>
      <button class="plain" @click="$refs.dialog.close()">Close</button></div>
    <div class="outcome" role="status" aria-live="polite" :class="{ old: waiting }">
      <p v-if="outcome" class="flip" :class="outcome.reached ? 'yes' : 'no'">
        <span class="sign" aria-hidden="true">{{ outcome.reached ? "✓" : "✕" }}</span> Decision:
        <strong>{{ outcome.label }}</strong><span v-if="outcome.chance !== null"> · chance of “{{ wanted }}”
        {{ percent(outcome.chance) }}</span></p>
      <p v-else>{{ failed || "Asking …" }}</p>
      <p v-if="outcome && outcome.broken.length" class="notice">This does not keep:
        <code v-for="(rule, i) in outcome.broken" :key="i">{{ rule }}</code></p>
    </div>
    <div class="form scroll">
      <Field v-for="column in ordered" :key="column.name" :column="column" :value="row[column.name]"
             :problem="problems[column.name]" prefix="try" @change="change" />
    </div>
  </dialog>`,
  data() { return { row: { ...this.start.row }, outcome: null, failed: "", problems: {}, waiting: true }; },
  computed: {
    ordered() {  // what the plan changes comes first
      const changed = (column) => this.start.row[column.name] !== this.start.from[column.name];
      return [...this.columns.filter(changed), ...this.columns.filter((column) => !changed(column))];
    },
  },
  mounted() { this.$refs.dialog.showModal(); this.judge(); },
  methods: {
    percent,
    change(name, value) {
      this.row = { ...this.row, [name]: value };
      this.waiting = true;
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.judge(), 150);
    },
    async judge() {
      const mine = (this.latest = (this.latest ?? 0) + 1);
      const reply = await this.ask(this.row, this.start.from);
      if (mine !== this.latest) return;
      this.waiting = false;
      this.failed = reply.failed ?? "";
      this.problems = Object.fromEntries(reply.problems ?? []);
      if (!reply.label) { this.outcome = null; this.failed ||= reply.problems?.[0]?.[1] ?? ""; return; }
      this.outcome = reply;
      for (const column of this.columns)
        if (column.derived.length) this.row[column.name] = reply.values[column.name];
    },
  },
};
