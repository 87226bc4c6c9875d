// The visitor's own values: a summary that opens into a form.
import { Field, fieldText } from "./shared.js";

export const CaseForm = {
  components: { Field },
  props: { columns: Array, row: Object, problems: Object, open: Boolean },
  emits: ["change", "open"],
  template: `
  <div class="case">
    <dl v-if="!open" class="facts" :class="{ few: !all }">
      <div v-for="column in columns" :key="column.name"><dt>{{ column.label }}</dt>
        <dd>{{ fieldText(column, row[column.name]) }}</dd></div>
    </dl>
    <div v-else class="form" role="group" aria-label="Your details">
      <Field v-for="column in columns" :key="column.name" :column="column" :value="row[column.name]"
             :problem="problems[column.name]" prefix="you" @change="(...value) => $emit('change', ...value)" />
    </div>
    <button v-if="!open" class="plain fold" :aria-expanded="all ? 'true' : 'false'" @click="all = !all">
      {{ all ? "Show less" : "Show all my details" }}</button>
    <button class="plain" :aria-expanded="open ? 'true' : 'false'" @click="$emit('open', !open)">
      {{ open ? "Done" : "Change these details" }}</button>
  </div>`,
  data() { return { all: false }; },
  methods: { fieldText },
};
