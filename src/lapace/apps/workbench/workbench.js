// The visitor's page as one component: NiceGUI hands over `page` and carries messages.
export { Workbench as default } from "lapace-workbench";
