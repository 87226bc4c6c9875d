// Values changed by hand, and the decision on them.
import { Field, percent } from "./shared.js";

export const WhatIf = {
  components: { Field },
  props: { start: Object, columns: Array, wanted: String, ask: Function, adopt: Function },
  emits: ["close"],
  template: `
  <dialog ref="dialog" class="sheet" aria-labelledby="try-title" @close="$emit('close', adopted)">
    <div class="bar"><h2 id="try-title">Try your own values</h2>
      <button class="primary" :disabled="adopting" @click="make">{{ adopting ? "One moment …" : "Make this my way" }}</button>
      <button class="plain" @click="$refs.dialog.close()">Close</button></div>
    <div class="outcome" role="status" aria-live="polite" :class="{ old: waiting }">
      <p v-if="outcome" class="flip" :class="outcome.reached ? 'yes' : 'no'">
        <span class="sign" aria-hidden="true">{{ outcome.reached ? "✓" : "✕" }}</span> Decision:
        <strong>{{ outcome.label }}</strong><span v-if="outcome.chance !== null"> · chance of “{{ wanted }}”
        {{ percent(outcome.chance) }}</span></p>
      <p v-else-if="!failed">Asking …</p>
      <p v-if="failed" class="problem" role="alert">{{ failed }}</p>
      <div v-if="outcome && outcome.broken.length" class="notice">These limits and rules are not kept:
        <ul class="rules"><li v-for="(rule, i) in outcome.broken" :key="i">{{ rule }}</li></ul></div>
    </div>
    <div class="form scroll">
      <Field v-for="column in ordered" :key="column.name" :column="column" :value="row[column.name]" tried
             :problem="problems[column.name]" prefix="try" @change="change" />
    </div>
  </dialog>`,
  data() {
    return { row: { ...this.start.row }, outcome: null, failed: "", problems: {}, waiting: true,
      adopting: false, adopted: false };
  },
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
      clearTimeout(this.timer);
      const mine = (this.latest = (this.latest ?? 0) + 1);
      const reply = await this.ask(this.row, this.start.from);
      if (mine !== this.latest) return;
      this.waiting = false;
      this.outcome = reply.label ? reply : null;
      this.problems = Object.fromEntries(reply.problems ?? []);
      const label = (name) => this.columns.find((column) => column.name === name)?.label;
      const said = (reply.problems ?? []).map(([name, words]) => (label(name) ? label(name) + ": " : "") + words);
      this.failed = reply.failed || said.join(" ");
      for (const column of this.outcome ? this.columns : [])
        if (column.derived.length) this.row[column.name] = reply.values[column.name];
    },
    async make() {  // what is wrong is said above the form, which stays in view on a phone too
      this.adopting = true;
      await this.judge();
      if (this.outcome && !this.outcome.reached)
        this.failed = "This would not lead to “" + this.wanted + "”. Change more, then try again.";
      else if (this.outcome?.broken.length) this.failed = "It cannot be your way while these are not kept.";
      else if (this.outcome) this.failed = await this.adopt(this.row);
      this.adopting = false;
      if (this.failed) return;
      this.adopted = true;
      this.$refs.dialog.close();
    },
  },
};
